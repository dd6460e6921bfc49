"""Predictions for rows of files or tables, by a bundle or a checkpoint: in order, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from recgrad.data.given_rows import KINDS, GivenRows, given_rows
from recgrad.errors import DataError, RecgradError
from recgrad.export.prediction import Prediction, carried, model_source, names_bundle
from recgrad.export.prediction_files import target_of, with_predictions, write_predictions
from recgrad.export.prediction_rows import check_not_input, open_rows
from recgrad.training.signals import StopRequest

if TYPE_CHECKING:
    import torch


def predict(
    config: Any,
    *,
    input_path: Any,
    output_path: str | Path | None = None,
    checkpoint_path: str | Path | None = None,
    carry_columns: Sequence[str] = (),
    output_columns: Sequence[str] = (),
    batch_size: int | None = None,
    predict_steps: int | None = None,
    nproc: int = 1,
    num_threads: int | None = None,
    dataset_type: str = "",
    writer_type: str = "",
    edit_config_json: str | Mapping[str, Any] | None = None,
    device: str | torch.device = "auto",
    stop: StopRequest | None = None,
    custom_code: bool = True,
    raw_scores: bool = False,
    is_profiling: bool = False,
    debug_level: int = 0,
) -> Any:
    """Write the predictions for every row of files and return their number, or return those of a table.

    Args:
        config: a bundle, which is scored without torch, a model_dir, a checkpoint in one, or a config.
        input_path: files, globs, folders or table addresses, joined by commas; or rows in memory: a pandas or
            polars DataFrame, an Arrow table, a dict of columns or a list of dicts.
        output_path: a .parquet or .csv file, or a folder without an ending, which gets part-0.parquet …;
            rows in memory need none, and get their predictions back in their own kind.
        checkpoint_path: another checkpoint than the config means.
        carry_columns: columns of the input to carry along; ALL_COLUMNS for all, ALL_EFFECTIVE_COLUMNS for
            those that the model reads.
        output_columns: which predictions; all by default.
        batch_size: rows that are scored together; data_config.eval_batch_size by default.
        predict_steps: batches to stop after.
        nproc: processes of this machine that share the rows; the output is in the order of the input.
        num_threads: to compute with, of each process.
        dataset_type: how files are read, where it is not as the config says: ParquetDataset, CsvDataset …
        writer_type: ParquetWriter or CsvWriter, for a folder; as the input by default.
        edit_config_json: changes to the config; of a bundle to data_config alone.
        device: where the dense half computes: auto, cpu or cuda; a torch.device is taken as it is.
        stop: asks to stop.
        custom_code: False refuses a config that names classes by import path.
        raw_scores: leave out the calibration that `recgrad calibrate` stored with the model.
        is_profiling: trace batches 8 to 15 of a checkpoint's predictions with torch.profiler, into a folder
            beside the output that is called as it is, with .profile.
        debug_level: 1 adds a column `__features__` to the output: encoded features as text.

    Raises:
        InterruptedBySignal: `stop` was asked for; nothing is written then.
    """
    if nproc < 1:
        raise RecgradError(f"predict: --nproc must be at least 1, got {nproc}")
    if (ranks := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise RecgradError(
            f"predict: WORLD_SIZE={ranks} says that torchrun has started several processes, and each "
            "would predict every row; start one, with --nproc"
        )
    source, checkpoint = model_source(config, checkpoint_path)
    from_files = isinstance(input_path, (str, Path))
    asked = Prediction(
        source,
        str(input_path) if from_files else "",
        checkpoint,
        tuple(carry_columns),
        tuple(output_columns),
        batch_size,
        predict_steps,
        num_threads,
        dataset_type,
        edit_config_json,
        device,
        custom_code,
        raw_scores,
        world_size=nproc,
        trace_dir=Path(f"{output_path}.profile") if is_profiling else None,
        debug_level=debug_level,
    )
    if not from_files:
        return _predict_table(asked, input_path, output_path, writer_type)
    if output_path is None:
        raise RecgradError("predict: files need an output_path, to which their predictions are written")
    stop = stop or StopRequest()
    target = target_of(output_path, writer_type=writer_type)
    if nproc > 1:
        from recgrad.export.parts import predict_parts

        return predict_parts(asked, target, stop, writer_type=writer_type)
    rows = open_rows(asked)
    if target.folder and not writer_type and rows.text:
        target = replace(target, suffix=".csv")
    check_not_input(target, rows.local_paths)
    return write_predictions(target, rows.tables(stop.check, flat=target.flat))


def _predict_table(asked: Prediction, rows: Any, output_path: str | Path | None, writer_type: str) -> Any:
    """The predictions of rows in memory, in their own kind; or their number, where they are written."""
    if asked.world_size > 1:
        raise RecgradError("predict: rows in memory are scored by one process; leave out nproc")
    if asked.predict_steps is not None or asked.dataset_type:
        raise RecgradError("predict: predict_steps and dataset_type are of files; give fewer rows instead")
    if asked.trace_dir is not None:
        raise RecgradError("predict: is_profiling traces batches of files; write the rows to one")
    if asked.debug_level:
        raise RecgradError("predict: debug_level writes features of files; write the rows to one")
    if names_bundle(asked.source):
        from recgrad.export.predict_bundle import open_bundle

        asked.check_no_edits()
        scorer: Any = open_bundle(asked)
    else:
        from recgrad.export.predict_trained import load_for
        from recgrad.export.trained import TrainedScorer

        scorer = TrainedScorer.of(load_for(asked), raw_scores=asked.raw_scores)
    given = given_rows(rows, scorer.schema)
    scores = scorer.score(given.table)
    kept = _kept(given, carried(asked.carry_columns, given.table.column_names, scorer.schema.names))
    if output_path is None:
        if asked.carry_columns:
            raise RecgradError("predict: carry_columns are for output files; the rows are in your hands")
        table = with_predictions(kept, scores, output_columns=asked.output_columns)
        return given.back({name: scores[name] for name in table.column_names})
    target = target_of(output_path, writer_type=writer_type)
    table = with_predictions(kept, scores, output_columns=asked.output_columns, flat=target.flat)
    return write_predictions(target, iter([table] if table.num_rows else []))


def _kept(given: GivenRows, names: Sequence[str]) -> pa.Table:
    missing = [name for name in names if name not in given.table.column_names]
    if missing:
        raise DataError(f"carry_columns: the rows have no column '{missing[0]}'; give {KINDS} that has it")
    return given.table.select(list(names))
