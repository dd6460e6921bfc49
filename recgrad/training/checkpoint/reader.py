"""Reading a checkpoint folder, from files that anyone may have written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from recgrad.errors import CheckpointError, nearest
from recgrad.training.checkpoint.arrays import check_file, read_array_file
from recgrad.training.checkpoint.json_text import parse_json
from recgrad.training.checkpoint.manifest import (
    MAX_TREE_BYTES,
    TREE_ARRAYS_NAME,
    TREE_NAME,
    Manifest,
    load_manifest,
    read_bytes,
)
from recgrad.training.checkpoint.snapshot import Range, Snapshot, TableRows
from recgrad.training.checkpoint.stored import open_table
from recgrad.training.checkpoint.tree import decode_tree


def verify_checkpoint(
    path: Path | str, *, checksums: bool = True, doing: Callable[[str], None] | None = None
) -> Manifest:
    """Read every byte and compare sizes and checksums; raises CheckpointError naming the file.

    Args:
        path: the checkpoint's folder.
        checksums: False compares the sizes alone, which reads no data.
        doing: is told now and then how far it has come, for it may take long.
    """
    folder = Path(path)
    manifest = load_manifest(folder)
    _check_files(folder, manifest, verify=checksums, doing=doing)
    return manifest


def read_checkpoint(path: Path | str, *, verify: bool = True) -> Snapshot:
    """The snapshot in a checkpoint folder.

    Arrays are mapped into memory, not read: they cost what is touched of them. They may be
    written to; the files do not change. bfloat16 table rows come back as float32. A table that
    several processes wrote is put together each time its arrays are asked for: take ranges of
    it with `part`, `pieces` or `read_table`.

    Args:
        path: the checkpoint's folder.
        verify: compare every file's checksum first; sizes and structure are always checked.

    Raises:
        CheckpointError: naming the file and what is wrong with it.
    """
    folder = Path(path)
    manifest = load_manifest(folder)
    _check_files(folder, manifest, verify=verify)
    tables = [open_table(folder, entry) for entry in manifest.tables]
    return Snapshot(manifest.step, _read_tree(folder), tables, manifest.computed_on, manifest.versions)


def read_table(
    source: Path | str | Snapshot,
    name: str,
    *,
    rows: Range | None = None,
    columns: Range | None = None,
    verify: bool = False,
) -> TableRows:
    """Some rows and columns of one table; nothing else is read.

    Args:
        source: a checkpoint's folder, or what `read_checkpoint` gave.
        name: the table's.
        rows: ids from rows[0] to before rows[1]; all if None.
        columns: from columns[0] to before columns[1]; all if None.
        verify: compare the checksums of the table's files first; only with a folder.

    Raises:
        CheckpointError: there is no such table, or a file is damaged.
    """
    if isinstance(source, Snapshot):
        found = [table for table in source.tables if table.name == name]
        known, where = [table.name for table in source.tables], f"the checkpoint of step {source.step}"
    else:
        folder = Path(source)
        manifest = load_manifest(folder)
        entries = [entry for entry in manifest.tables if entry.name == name]
        for record in (manifest.files[path] for entry in entries for path in entry.shards):
            check_file(folder / record.path, record.num_bytes, record.crc32, verify=verify)
        found = [open_table(folder, entry) for entry in entries]
        known, where = [entry.name for entry in manifest.tables], str(folder)
    if not found:
        raise CheckpointError(f"{where}: has no table '{name}'{nearest(name, known)}")
    return found[0].part(rows, columns)


def _check_files(
    folder: Path, manifest: Manifest, *, verify: bool, doing: Callable[[str], None] | None = None
) -> None:
    for record in manifest.files.values():
        check_file(folder / record.path, record.num_bytes, record.crc32, verify=verify, doing=doing)


def _read_tree(folder: Path) -> dict[str, Any]:
    path = folder / TREE_NAME
    skeleton = parse_json(read_bytes(path, MAX_TREE_BYTES), str(path))
    arrays = read_array_file(folder / TREE_ARRAYS_NAME).arrays
    try:
        tree = decode_tree(skeleton, arrays)
    except (CheckpointError, RecursionError) as error:
        raise CheckpointError(f"{path}: the tree is malformed ({error})") from error
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path}: the tree is not a dict")
    return tree
