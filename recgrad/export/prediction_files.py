"""Files of predictions: parquet or CSV, one file or a folder of parts, whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.list_column import Column, ListColumn
from recgrad.errors import RecgradError, nearest, system_reason, whole_path

SUFFIXES = (".parquet", ".csv")
WRITERS = {"ParquetWriter": ".parquet", "CsvWriter": ".csv"}
"""TorchEasyRec's names of what files can be written."""


@dataclass(frozen=True)
class Target:
    """Where predictions go.

    Attributes:
        path: a file, or a folder of parts.
        suffix: of the files, which says their format.
        folder: whether it is a folder.
    """

    path: Path
    suffix: str
    folder: bool

    @property
    def flat(self) -> bool:
        """Whether each class needs a column of its own: CSV has no lists."""
        return self.suffix == ".csv"


def target_of(path: str | Path, *, writer_type: str = "", default: str = ".parquet") -> Target:
    """Where predictions go: a path that ends in .parquet or .csv is a file, one without an ending a folder.

    Args:
        path: as the user wrote it.
        writer_type: ParquetWriter or CsvWriter; must fit the ending of a file.
        default: ending of the files in a folder where `writer_type` does not say it.

    Raises:
        RecgradError: it cannot be written to.
    """
    target = Path(path)
    if writer_type and writer_type not in WRITERS:
        known = ", ".join(WRITERS)
        raise RecgradError(
            f"predict: no writer '{writer_type}' (has: {known}){nearest(writer_type, WRITERS)}"
        )
    if target.suffix not in ("", *SUFFIXES):
        raise RecgradError(
            f"predict: output '{target}' must end with one of {', '.join(SUFFIXES)}, or have no ending for a "
            "folder"
        )
    suffix = WRITERS.get(writer_type, target.suffix or default)
    if target.suffix:
        if suffix != target.suffix:
            raise RecgradError(
                f"predict: {writer_type} writes {suffix} files, but output '{target}' ends with "
                f"{target.suffix}; change one"
            )
        if target.is_dir():
            raise RecgradError(f"predict: output '{target}'{whole_path(target)} is a folder; name a file")
        return Target(target, suffix, folder=False)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RecgradError(
            f"predict: output '{target}'{whole_path(target)} is there already; remove it, or choose another"
        )
    return Target(target, suffix, folder=True)


def with_predictions(
    table: pa.Table,
    predictions: Mapping[str, Column],
    *,
    output_columns: Sequence[str] = (),
    flat: bool = False,
    classes: Mapping[str, Sequence[str]] | None = None,
) -> pa.Table:
    """The table with a column for each prediction.

    Args:
        table: rows with other columns.
        predictions: by name.
        output_columns: which; () for all.
        flat: gives each class a column of its own, for CSV has no lists.
        classes: names of a prediction's classes; the likeliest one's is a prediction, too.
    """
    predictions = {**predictions, **_likeliest(predictions, classes or {})}
    if flat and any(isinstance(values, ListColumn) for values in predictions.values()):
        raise RecgradError("predict: rows have lists of predictions, which CSV cannot hold; write parquet")
    unknown = [name for name in output_columns if name not in predictions]
    if unknown:
        raise RecgradError(
            f"predict: output_columns: no prediction '{unknown[0]}' (has: {', '.join(predictions)})"
            f"{nearest(unknown[0], predictions)}"
        )
    carried = set(table.column_names)
    for name in output_columns or predictions:
        values = predictions[name]
        if flat and not isinstance(values, ListColumn) and values.ndim > 1:
            columns = values.reshape(len(values), -1)
            for number in range(columns.shape[1]):
                table = table.append_column(f"{name}_{number}", pa.array(columns[:, number]))
            continue
        table = table.append_column(name, prediction_column(values))
    twice = carried.intersection(table.column_names[len(carried) :])
    if twice:
        raise RecgradError(
            f"predict: column '{min(twice)}' of the input has the name of a prediction; "
            "do not carry it along, or rename it"
        )
    return table


def _likeliest(predictions: Mapping[str, Column], classes: Mapping[str, Sequence[str]]) -> dict[str, Column]:
    """The name of the likeliest class, as `class`, `class_<task>`, for each prediction with names."""
    found: dict[str, Column] = {}
    for output, names in classes.items():
        scores = predictions.get(output)
        if scores is not None and not isinstance(scores, ListColumn):
            of_rows = (scores > 0.5).astype(np.int64) if scores.ndim == 1 else scores.argmax(1)
            found[output.replace("probs", "class", 1)] = np.asarray(names, object)[of_rows]
    return found


def class_names(data: DataConfig, outputs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """The names of classes by prediction.

    Args:
        data: says them by label.
        outputs: predictions and the labels they are of.
    """
    named = {item.label_field: tuple(item.values) for item in data.label_classes}
    return {
        output: named[label] for output, label in outputs if label in named and output.startswith("probs")
    }


def prediction_column(values: Column) -> pa.Array:
    """Scores, or names, as an Arrow array; vectors as lists."""
    if isinstance(values, ListColumn):
        return values.to_arrow()
    if values.ndim == 1:
        return pa.array(values)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:])))


def write_predictions(target: Target, tables: Iterator[pa.Table]) -> int:
    """Write tables one after another; returns the number of rows.

    Raises:
        RecgradError: there are none, or they cannot be written; nothing is left then.
    """
    with staging(target) as folder:
        path = folder / f"part-0{target.suffix}"
        rows = write_file(path, tables)
        if not rows:
            raise RecgradError("predict: the input has no rows")
        publish(target, folder, [path])
    return rows


def write_file(path: Path, tables: Iterator[pa.Table]) -> int:
    """Write tables as one file; no tables is no file."""
    rows: int = 0
    first = next(tables, None)
    if first is None:
        return 0
    try:
        with _open(path, first.schema) as writer:
            writer.write_table(first)
            rows += first.num_rows
            for table in tables:
                writer.write_table(table)
                rows += table.num_rows
    except pa.ArrowInvalid as error:
        raise RecgradError(
            f"predict: {path.suffix} files cannot hold these columns ({error}); write parquet"
        ) from error
    return rows


def join_files(path: Path, parts: Sequence[Path]) -> None:
    """Write the rows of parquet files one after another as one file."""

    def tables() -> Iterator[pa.Table]:
        for part in parts:
            with pq.ParquetFile(part) as file:
                for batch in file.iter_batches():
                    yield pa.Table.from_batches([batch])

    write_file(path, tables())


@contextmanager
def staging(target: Target) -> Iterator[Path]:
    """A hidden folder beside the target, which goes when the block ends."""
    parent = target.path.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.path.name}.", dir=parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise RecgradError(
            f"predict: output '{target.path}'{whole_path(target.path)} cannot be written: "
            f"{system_reason(error)}"
        ) from error


def publish(target: Target, folder: Path, files: Sequence[Path]) -> None:
    """Make finished files of a staging folder the target, in one step."""
    if not target.folder:
        (path,) = files
        path.replace(target.path)
        return
    whole = folder / "whole"
    whole.mkdir(mode=0o755)
    for file in files:
        file.rename(whole / file.name)
    whole.replace(target.path)


def _open(path: Path, schema: pa.Schema) -> Any:
    if path.suffix == ".csv":
        nested = next((field for field in schema if pa.types.is_nested(field.type)), None)
        if nested is not None:
            raise RecgradError(
                f"predict: .csv files cannot hold column '{nested.name}' ({nested.type}); write parquet"
            )
        return pa.csv.CSVWriter(path, schema)
    return pq.ParquetWriter(path, schema)
