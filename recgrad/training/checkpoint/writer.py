"""Writing a checkpoint folder."""

from __future__ import annotations

from pathlib import Path

from recgrad.errors import CheckpointError
from recgrad.training.checkpoint.arrays import FileRecord, RawArray, write_array_file, write_blocks
from recgrad.training.checkpoint.json_text import dump_json
from recgrad.training.checkpoint.manifest import (
    MANIFEST_NAME,
    MAX_TREE_BYTES,
    TREE_ARRAYS_NAME,
    TREE_NAME,
    Manifest,
    TableEntry,
    dump_manifest,
    package_versions,
    shard_path,
)
from recgrad.training.checkpoint.snapshot import Snapshot, TableRows
from recgrad.training.checkpoint.staging import staged_folder
from recgrad.training.checkpoint.tree import encode_tree

STATE_PREFIX = "state."


def write_checkpoint(path: Path | str, snapshot: Snapshot) -> Path:
    """Write a snapshot to the folder `path`, which appears whole or not at all.

    Everything is forced to the disk before the folder gets its name. A folder that has the
    name already is replaced in one step.
    """
    path = Path(path)
    try:
        with staged_folder(path) as staging:
            files = write_tree(staging, snapshot)
            entries = []
            for table in snapshot.tables:
                record = write_table_shard(staging, table)
                files.append(record)
                entries.append(
                    TableEntry(table.name, table.num_rows, table.dim, len(table.row_ids), (record.path,))
                )
            write_manifest(staging, snapshot.step, files, entries)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(
            f"{path}: the checkpoint could not be written ({reason}); nothing was left there, "
            "checkpoints written before are untouched"
        ) from error
    return path


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
    """Write some of the touched rows of a table; shards of a table hold different rows."""
    problem = table.problem()
    if problem is not None:
        raise CheckpointError(f"table '{table.name}': {problem}")
    path = shard_path(table.name, shard, num_shards)
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    arrays = {"row_ids": RawArray.of_numpy(table.row_ids), "weights": RawArray.of_numpy(table.weights)}
    for name, state in table.states.items():
        arrays[STATE_PREFIX + name] = RawArray.of_numpy(state)
    metadata = {"table": table.name, "num_rows": str(table.num_rows), "dim": str(table.dim)}
    return write_array_file(folder, path, arrays, metadata)


def write_manifest(folder: Path, step: int, files: list[FileRecord], tables: list[TableEntry]) -> None:
    """Write the manifest, the last file of a checkpoint."""
    names = [table.name for table in tables]
    if len(set(names)) != len(names):
        raise CheckpointError(f"{folder.name}: a table is in the snapshot twice: {sorted(names)}")
    manifest = Manifest(step, package_versions(), tables, {record.path: record for record in files})
    write_blocks(folder, MANIFEST_NAME, [dump_manifest(manifest)])
