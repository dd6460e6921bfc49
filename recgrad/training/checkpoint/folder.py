"""One checkpoint folder: a snapshot written to it, checked, and read back.

__init__.py has a drawing of the folder. What several ranks write together is in ranks.py, which puts
the same pieces down in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recgrad.errors import CheckpointError, nearest
from recgrad.training.checkpoint.arrays import read_array_file, write_array_file
from recgrad.training.checkpoint.files import (
    FileRecord,
    check_file,
    dump_json,
    parse_json,
    read_bytes,
    write_blocks,
)
from recgrad.training.checkpoint.manifest import (
    MANIFEST_NAME,
    MAX_TREE_BYTES,
    TREE_ARRAYS_NAME,
    TREE_NAME,
    Manifest,
    TableEntry,
    dump_manifest,
    load_manifest,
    shard_path,
)
from recgrad.training.checkpoint.shards import Shard, describe_shard, join_shards, read_row_ids, write_rows
from recgrad.training.checkpoint.snapshot import Range, Snapshot, TableRows
from recgrad.training.checkpoint.staging import staged_folder
from recgrad.training.checkpoint.stored import open_table
from recgrad.training.checkpoint.tree import decode_tree, encode_tree
from recgrad.training.conditions import package_versions


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


def _by_name(tables: Sequence[TableRows]) -> list[list[TableRows]]:
    """The parts of each table, tables in the order of their first parts."""
    parts: dict[str, list[TableRows]] = {}
    for table in tables:
        parts.setdefault(table.name, []).append(table)
    return list(parts.values())


def _written(folder: Path, part: TableRows, shard: int, num_shards: int) -> Shard:
    return describe_shard(part, write_rows(folder, shard_path(part.name, shard, num_shards), part))


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
