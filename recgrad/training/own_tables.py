"""Rows that a run is given in memory, kept as its files: it can be resumed, evaluated and exported."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from recgrad.config import edit_config, load_config
from recgrad.config.json_source import load_json
from recgrad.config.proto.data_pb2 import DatasetType, ParquetDataset
from recgrad.data.arrow_columns import without_dictionary
from recgrad.data.given_rows import given_rows
from recgrad.errors import DataError, RecgradError, system_reason, whole_path
from recgrad.training.processes import read_environment

DATA_FOLDER = "data"
"""Of a model_dir: the rows that the run was given in memory."""
ROW_GROUP = 65536


def in_memory(rows: Any) -> bool:
    """Whether rows are given themselves, not as paths."""
    return rows is not None and not isinstance(rows, (str, os.PathLike))


Edits: TypeAlias = str | Mapping[str, Any] | None


def with_own_rows(
    config: Any, edits: Edits, model_dir: str | Path | None, given: Mapping[str, Any]
) -> tuple[Edits, dict[str, str | None]]:
    """The edits and paths of a run: rows in memory are written to its model_dir, named by their content.

    Args:
        config: of the run.
        edits: changes to it.
        model_dir: instead of the config's.
        given: paths, rows or None, by the field of the config that they stand for.

    Raises:
        RecgradError: they are given beside files of another kind, or to several processes.
        DataError: they are no table, have no rows, or a column of mixed types.
    """
    if not any(in_memory(rows) for rows in given.values()):
        return edits, {field: None if path is None else os.fspath(path) for field, path in given.items()}
    loaded = load_config(config)
    effective = edit_config(loaded, edits) if edits else loaded
    if read_environment().distributed:
        raise RecgradError("train: rows in memory are of one process; with several, give files")
    kind = effective.data_config.dataset_type
    for field, rows in given.items():
        path = rows if isinstance(rows, (str, os.PathLike)) else getattr(effective, field)
        if not in_memory(rows) and path and kind != ParquetDataset:
            raise RecgradError(
                f"{field}: '{path}' is read as {DatasetType.Name(kind)}, and rows in memory as "
                "ParquetDataset; give both in memory, or both as files"
            )
    folder = Path(model_dir or effective.model_dir) / DATA_FOLDER
    paths = {
        field: _store(rows, field, folder) if in_memory(rows) else None if rows is None else os.fspath(rows)
        for field, rows in given.items()
    }
    if kind == ParquetDataset:
        return edits, paths
    changes = load_json(edits, "edits") if isinstance(edits, str) else dict(edits or {})
    return {**changes, "data_config.dataset_type": "ParquetDataset"}, paths


def _store(rows: Any, field: str, folder: Path) -> str:
    """Write rows as a parquet file; the same rows are the same file."""
    try:
        given = given_rows(rows).table
    except DataError as error:
        raise DataError(f"{field}: {str(error).removeprefix('rows: ')}") from error
    table = pa.table({name: without_dictionary(given.column(name)) for name in given.column_names})
    if not table.num_rows:
        raise DataError(f"{field}: the table has no rows")
    empty = next((item.name for item in table.schema if pa.types.is_null(item.type)), None)
    if empty is not None:
        raise DataError(f"{field}: column '{empty}' has no value at all, so no type; drop it, or cast it")
    role = field.partition("_")[0]
    temporary = folder / f".{role}.{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            pq.write_table(table, temporary, row_group_size=ROW_GROUP)
            path = folder / f"{role}-{_digest(temporary)}.parquet"
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except pa.ArrowException as error:
        raise DataError(f"{field}: cannot be written as parquet ({error}); cast the column") from error
    except OSError as error:
        raise RecgradError(
            f"model_dir {folder.parent}{whole_path(folder.parent)}: cannot be written: {system_reason(error)}"
        ) from error
    return str(path.absolute())


def _digest(path: Path) -> str:
    digest = blake2b(digest_size=6)
    with open(path, "rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()
