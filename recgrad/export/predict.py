"""Predictions for files of rows: streaming, in their order, with chosen columns carried along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch

from recgrad.data.loader import build_loader
from recgrad.errors import RecgradError, whole_path
from recgrad.training.preflight import ConfigSource
from recgrad.training.processes import choose_device
from recgrad.training.run import load_trained
from recgrad.training.runtime import computing
from recgrad.training.signals import StopRequest

SUFFIXES = (".parquet", ".csv")


@computing()
def predict(
    config: ConfigSource,
    *,
    input_path: str,
    output_path: str | Path,
    checkpoint_path: str | Path | None = None,
    carry_columns: Sequence[str] = (),
    edit_config_json: str | Mapping[str, Any] | None = None,
    device: str | torch.device = "auto",
    stop: StopRequest | None = None,
    custom_code: bool = True,
) -> int:
    """Write the predictions of a checkpoint for every row of `input_path`; returns their number.

    The dense half computes on `device`: auto, cpu or cuda; a torch.device is taken as it is.
    Without `custom_code` a config that names classes by import path is refused.

    Raises:
        InterruptedBySignal: `stop` was asked for; nothing is written then.
    """
    stop = stop or StopRequest()
    chosen = choose_device(device)
    target = Path(output_path)
    if target.suffix not in SUFFIXES:
        raise RecgradError(f"predict: output '{target}' must end with one of {', '.join(SUFFIXES)}")
    if target.is_dir():
        raise RecgradError(f"predict: output '{target}'{whole_path(target)} is a folder; name a file")
    trained = load_trained(
        config,
        checkpoint_path,
        edit_config_json=edit_config_json,
        exporting=True,
        device=chosen,
        custom_code=custom_code,
    )
    loader = build_loader(
        trained.config,
        input_path,
        features=trained.features,
        targets=None,
        training=False,
        carry_columns=carry_columns,
        pin=chosen.type == "cuda",
    )
    if target.exists() and any(target.samefile(path) for path in loader.local_paths):
        raise RecgradError(
            f"predict: output '{target}'{whole_path(target)} is one of the files to predict for; "
            "choose another"
        )

    def tables() -> Iterator[pa.Table]:
        task = trained.task
        with torch.inference_mode():
            for batch, carried in loader.epoch_with_rows():
                stop.check()
                yield _with_predictions(carried, task.predictions(task(batch)), flat=target.suffix == ".csv")

    return _write(target, tables())


def _with_predictions(table: pa.Table, predictions: Mapping[str, torch.Tensor], *, flat: bool) -> pa.Table:
    """The table with a column for each prediction; `flat` gives each class its own, for CSV has no lists."""
    carried = set(table.column_names)
    for name, values in predictions.items():
        array = values.float().cpu().numpy()
        if flat and array.ndim == 2:
            for number in range(array.shape[1]):
                table = table.append_column(f"{name}_{number}", pa.array(array[:, number]))
            continue
        column = (
            pa.array(array)
            if array.ndim == 1
            else pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])
        )
        table = table.append_column(name, column)
    twice = carried.intersection(table.column_names[len(carried) :])
    if twice:
        raise RecgradError(
            f"predict: column '{min(twice)}' of the input has the name of a prediction; "
            "do not carry it along, or rename it"
        )
    return table


def _write(target: Path, tables: Iterator[pa.Table]) -> int:
    """Write to a file beside the target and rename it, so that a killed run leaves no half file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    rows: int = 0
    first = next(tables, None)
    if first is None:
        raise RecgradError("predict: the input has no rows")
    try:
        with _open(partial, target.suffix, first.schema) as writer:
            writer.write_table(first)
            rows += first.num_rows
            for table in tables:
                writer.write_table(table)
                rows += table.num_rows
        partial.replace(target)
    except pa.ArrowInvalid as error:
        raise RecgradError(f"predict: {target} cannot hold these columns ({error}); write parquet") from error
    finally:
        partial.unlink(missing_ok=True)
    return rows


def _open(path: Path, suffix: str, schema: pa.Schema) -> Any:
    if suffix == ".csv":
        return pa.csv.CSVWriter(path, schema)
    return pa.parquet.ParquetWriter(path, schema)
