"""Reading a checkpoint folder, from files that anyone may have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from recgrad.errors import CheckpointError
from recgrad.training.checkpoint.arrays import ArrayFile, check_file, read_array_file
from recgrad.training.checkpoint.json_text import parse_json, require
from recgrad.training.checkpoint.manifest import (
    MAX_TREE_BYTES,
    TREE_ARRAYS_NAME,
    TREE_NAME,
    Manifest,
    TableEntry,
    load_manifest,
    read_bytes,
)
from recgrad.training.checkpoint.snapshot import AnyArray, Snapshot, TableRows
from recgrad.training.checkpoint.tree import decode_tree
from recgrad.training.checkpoint.writer import STATE_PREFIX


def verify_checkpoint(path: Path | str, *, checksums: bool = True) -> Manifest:
    """Read every byte and compare sizes and checksums; raises CheckpointError naming the file.

    Args:
        path: the checkpoint's folder.
        checksums: False compares the sizes alone, which reads no data.
    """
    folder = Path(path)
    manifest = load_manifest(folder)
    _check_files(folder, manifest, verify=checksums)
    return manifest


def read_checkpoint(path: Path | str, *, verify: bool = True) -> Snapshot:
    """The snapshot in a checkpoint folder.

    Arrays are mapped into memory, not read: they cost what is touched of them. They may be
    written to; the files do not change. bfloat16 table rows come back as float32.

    Args:
        path: the checkpoint's folder.
        verify: compare every file's checksum first; sizes and structure are always checked.

    Raises:
        CheckpointError: naming the file and what is wrong with it.
    """
    folder = Path(path)
    manifest = load_manifest(folder)
    _check_files(folder, manifest, verify=verify)
    tables = [_read_table(folder, entry) for entry in manifest.tables]
    return Snapshot(manifest.step, _read_tree(folder), tables)


def _check_files(folder: Path, manifest: Manifest, *, verify: bool) -> None:
    for record in manifest.files.values():
        check_file(folder / record.path, record.num_bytes, record.crc32, verify=verify)


def _read_tree(folder: Path) -> dict[str, Any]:
    path = folder / TREE_NAME
    try:
        skeleton = parse_json(read_bytes(path, MAX_TREE_BYTES), str(path))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    arrays = read_array_file(folder / TREE_ARRAYS_NAME).arrays
    try:
        tree = decode_tree(skeleton, arrays)
    except (CheckpointError, RecursionError) as error:
        raise CheckpointError(f"{path}: the tree is malformed ({error})") from error
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path}: the tree is not a dict")
    return tree


def _read_table(folder: Path, entry: TableEntry) -> TableRows:
    shards = []
    for name in entry.shards:
        file = read_array_file(folder / name)
        _check_shard(folder / name, entry, file)
        shards.append(_rows(entry, file))
    rows = shards[0] if len(shards) == 1 else _merged(folder, entry, shards)
    where = f"{folder / entry.shards[0]}: table {entry.name[:200]!r}"
    problem = rows.problem()
    if problem is not None:
        raise CheckpointError(f"{where}: {problem}")
    require(
        len(rows.row_ids) == entry.touched_rows, where, "has another number of rows than the manifest says"
    )
    return rows


def _check_shard(path: Path, entry: TableEntry, file: ArrayFile) -> None:
    expected = {"table": entry.name, "num_rows": str(entry.num_rows), "dim": str(entry.dim)}
    require(file.metadata == expected, path, f"is not of the table that the manifest says: {expected}")
    require("row_ids" in file.arrays and "weights" in file.arrays, path, "has no row_ids or no weights")
    for name in file.arrays:
        require(
            name in ("row_ids", "weights") or name.startswith(STATE_PREFIX),
            path,
            f"unknown array {name[:200]!r}",
        )


def _rows(entry: TableEntry, file: ArrayFile) -> TableRows:
    states = {
        name.removeprefix(STATE_PREFIX): array.numpy()
        for name, array in sorted(file.arrays.items())
        if name.startswith(STATE_PREFIX)
    }
    return TableRows(
        entry.name,
        entry.num_rows,
        entry.dim,
        file.arrays["row_ids"].numpy(),
        file.arrays["weights"].numpy(),
        states,
    )


def _merged(folder: Path, entry: TableEntry, shards: list[TableRows]) -> TableRows:
    """One table of all shards, in the order of row ids."""
    first = shards[0]
    for path, shard in zip(entry.shards, shards):
        problem = shard.problem()
        require(problem is None, folder / path, str(problem))
        same = shard.state_shapes == first.state_shapes
        require(same, folder / path, "has other optimizer states than the first shard")
    ids = np.concatenate([shard.row_ids for shard in shards])
    order = np.argsort(ids, kind="stable")
    states: dict[str, AnyArray] = {}
    for name, shape in first.state_shapes.items():
        parts = [shard.states[name] for shard in shards]
        if shape:
            states[name] = np.concatenate(parts)[order]
        else:
            agree = all(part.tobytes() == parts[0].tobytes() for part in parts)
            require(agree, folder / entry.shards[0], f"the shards disagree on state {name[:200]!r}")
            states[name] = parts[0]
    weights = np.concatenate([shard.weights for shard in shards])[order]
    return TableRows(entry.name, entry.num_rows, entry.dim, ids[order], weights, states)
