"""Writing a checkpoint folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recgrad.errors import CheckpointError
from recgrad.training.checkpoint.arrays import (
    FileRecord,
    RawArray,
    read_array_file,
    write_array_file,
    write_blocks,
)
from recgrad.training.checkpoint.json_text import dump_json
from recgrad.training.checkpoint.manifest import (
    MANIFEST_NAME,
    MAX_TREE_BYTES,
    TREE_ARRAYS_NAME,
    TREE_NAME,
    Manifest,
    TableEntry,
    dump_manifest,
    shard_path,
)
from recgrad.training.checkpoint.shards import Shard, describe_shard, join_shards
from recgrad.training.checkpoint.snapshot import Snapshot, TableRows
from recgrad.training.checkpoint.staging import staged_folder
from recgrad.training.checkpoint.tree import encode_tree
from recgrad.training.conditions import package_versions

STATE_PREFIX = "state."


def write_checkpoint(path: Path | str, snapshot: Snapshot) -> Path:
    """Write a snapshot to the folder `path`, which appears whole or not at all.

    Everything is forced to the disk before the folder gets its name. A folder that has the
    name already is replaced in one step. A table may come in several parts, of different rows
    or different columns; together they must be all of it.
    """
    path = Path(path)
    try:
        with staged_folder(path) as staging:
            files = write_tree(staging, snapshot)
            entries = []
            for parts in _by_name(snapshot.tables):
                shards = [_written(staging, part, at, len(parts)) for at, part in enumerate(parts)]
                entries.append(join_shards(shards, lambda shard: read_row_ids(staging, shard))[1])
                files += [shard.file for shard in shards]
            write_manifest(staging, snapshot, files, entries)
    except OSError as error:
        raise not_written(path, error.strerror or str(error)) from error
    return path


def not_written(path: Path, reason: str, kind: type[CheckpointError] = CheckpointError) -> CheckpointError:
    """The error of a save that failed."""
    return kind(
        f"{path}: the checkpoint could not be written ({reason}); nothing was left there, "
        "checkpoints written before are untouched"
    )


def read_row_ids(folder: Path, shard: Shard) -> npt.NDArray[np.int64]:
    """The row ids of a shard that was written below `folder`."""
    return read_array_file(folder / shard.file.path).arrays["row_ids"].numpy()


def _by_name(tables: Sequence[TableRows]) -> list[list[TableRows]]:
    """The parts of each table, tables in the order of their first parts."""
    parts: dict[str, list[TableRows]] = {}
    for table in tables:
        parts.setdefault(table.name, []).append(table)
    return list(parts.values())


def _written(folder: Path, part: TableRows, shard: int, num_shards: int) -> Shard:
    return describe_shard(part, write_table_shard(folder, part, shard, num_shards))


def write_tree(folder: Path, snapshot: Snapshot) -> list[FileRecord]:
    """Write the tree's two files."""
    skeleton, arrays = encode_tree(snapshot.tree)
    text = dump_json(skeleton)
    if len(text) > MAX_TREE_BYTES:
        raise CheckpointError(
            f"{TREE_NAME}: would take {len(text)} bytes, over {MAX_TREE_BYTES}; keep long lists as arrays"
        )
    return [
        write_blocks(folder, TREE_NAME, [text]),
        write_array_file(folder, TREE_ARRAYS_NAME, arrays, {}),
    ]


def write_table_shard(folder: Path, table: TableRows, shard: int = 0, num_shards: int = 1) -> FileRecord:
    """Write some of the touched rows of a table, or some columns of them, to their place."""
    return write_rows(folder, shard_path(table.name, shard, num_shards), table)


def write_rows(folder: Path, path: str, table: TableRows) -> FileRecord:
    """Write rows of a table to the file `folder/path`."""
    problem = table.problem()
    if problem is not None:
        raise CheckpointError(f"table '{table.name}': {problem}")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    arrays = {"row_ids": RawArray.of_numpy(table.row_ids), "weights": RawArray.of_numpy(table.weights)}
    for name, state in table.states.items():
        arrays[STATE_PREFIX + name] = RawArray.of_numpy(state)
    columns = (table.first_column, table.width) if table.is_slice else None
    return write_array_file(
        folder, path, arrays, shard_metadata(table.name, table.num_rows, table.dim, columns)
    )


def shard_metadata(name: str, num_rows: int, dim: int, columns: tuple[int, int] | None) -> dict[str, str]:
    """What a shard's file says of itself; `columns` are the first and the number of a slice."""
    metadata = {"table": name, "num_rows": str(num_rows), "dim": str(dim)}
    if columns is not None:
        metadata |= {"first_column": str(columns[0]), "columns": str(columns[1])}
    return metadata


def write_manifest(
    folder: Path, snapshot: Snapshot, files: list[FileRecord], tables: list[TableEntry]
) -> None:
    """Write the manifest, the last file of a checkpoint."""
    names = [table.name for table in tables]
    if len(set(names)) != len(names):
        raise CheckpointError(f"{folder.name}: a table is in the snapshot twice: {sorted(names)}")
    manifest = Manifest(
        snapshot.step,
        package_versions(),
        tables,
        {record.path: record for record in files},
        snapshot.computed_on,
    )
    write_blocks(folder, MANIFEST_NAME, [dump_manifest(manifest)])
