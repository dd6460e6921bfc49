"""The manifest: what a checkpoint consists of, and the checksums that prove it whole.

`manifest.json` is written last. Its first key is the checksum of all bytes after that line, so
that a flipped bit anywhere in the manifest is noticed too. It holds no clock time: two runs
that do the same write the same bytes.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from recgrad.errors import CheckpointError, whole_path
from recgrad.training.checkpoint.files import FileRecord, dump_json, parse_json, read_bytes, require

FORMAT = "recgrad-checkpoint"
FORMAT_VERSION = 2
FIRST_VERSION_WITH_SLICES = 2
MANIFEST_NAME = "manifest.json"
TREE_NAME = "tree.json"
TREE_ARRAYS_NAME = "tree.safetensors"
MAX_MANIFEST_BYTES = 64 << 20
MAX_TREE_BYTES = 64 << 20

FOLDER_NAME = re.compile(r"model\.ckpt-(0|[1-9][0-9]{0,18})", re.ASCII)
_FIRST_LINE = re.compile(rb'\{\n  "crc32": "([0-9a-f]{8})",\n')
_SHARD_PATH = re.compile(r"tables/[A-Za-z0-9_.~%-]{1,250}/[0-9]{5}-of-[0-9]{5}\.safetensors", re.ASCII)


@dataclass(frozen=True)
class TableEntry:
    """One table: its name, shape, how many rows were touched, and the files that hold them.

    `columns` has (first column, number of columns) of each shard; it is empty when every shard
    has whole rows.
    """

    name: str
    num_rows: int
    dim: int
    touched_rows: int
    shards: tuple[str, ...]
    columns: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json; `computed_on` has the conditions of each rank, or is empty."""

    step: int
    versions: Mapping[str, str]
    tables: Sequence[TableEntry]
    files: Mapping[str, FileRecord]
    computed_on: Sequence[Mapping[str, str]] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(record.num_bytes for record in self.files.values())


def shard_path(table: str, shard: int, num_shards: int) -> str:
    """Where a shard of a table lies inside the checkpoint, such as tables/user_id/00000-of-00001.safetensors.

    Characters that file systems dislike are percent-encoded; long names are cut and told
    apart by a checksum. The manifest knows the true name.
    """
    folder = quote(table, safe="", errors="surrogatepass")
    if not folder.strip("."):
        folder = folder.replace(".", "%2E") or "%"
    if len(folder) > 200:
        folder = f"{folder[:180]}~{zlib.crc32(folder.encode()):08x}"
    return f"tables/{folder}/{shard:05d}-of-{num_shards:05d}.safetensors"


def dump_manifest(manifest: Manifest) -> bytes:
    """The bytes of manifest.json.

    The format version is the lowest that has all that is in it: what is written without slices
    of columns can be read by every Recgrad.
    """
    sliced = any(table.columns for table in manifest.tables)
    body = {
        "format": FORMAT,
        "format_version": FIRST_VERSION_WITH_SLICES if sliced else 1,
        "step": manifest.step,
        "versions": dict(manifest.versions),
        **({"computed_on": [dict(rank) for rank in manifest.computed_on]} if manifest.computed_on else {}),
        "tables": [
            {
                "name": table.name,
                "num_rows": table.num_rows,
                "dim": table.dim,
                "touched_rows": table.touched_rows,
                "shards": list(table.shards),
                **({"columns": [list(columns) for columns in table.columns]} if table.columns else {}),
            }
            for table in manifest.tables
        ],
        "files": {
            path: {"bytes": record.num_bytes, "crc32": f"{record.crc32:08x}"}
            for path, record in sorted(manifest.files.items())
        },
    }
    rest = dump_json(body, indent=2).removeprefix(b"{\n") + b"\n"
    return b'{\n  "crc32": "%08x",\n' % zlib.crc32(rest) + rest


def load_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a checkpoint folder."""
    path = folder / MANIFEST_NAME
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such checkpoint folder{whole_path(folder)}")
    if (folder / "model" / ".metadata").exists() and not path.exists():
        raise CheckpointError(
            f"{folder}: is a torch.distributed checkpoint, not one of Recgrad's; it cannot be read"
        )
    text = read_bytes(path, MAX_MANIFEST_BYTES)
    first = _FIRST_LINE.match(text)
    require(first is not None, path, "is damaged (no checksum line)")
    assert first is not None
    found = zlib.crc32(text[first.end() :])
    require(found == int(first[1], 16), path, f"is damaged (checksum {found:08x})")
    body = parse_json(text, str(path))
    require(isinstance(body, dict) and body.get("format") == FORMAT, path, f"is not a {FORMAT}")
    version = body.get("format_version")
    require(
        type(version) is int and 1 <= version <= FORMAT_VERSION,
        path,
        f"has format version {str(version)[:20]}, this Recgrad reads up to {FORMAT_VERSION}; upgrade Recgrad",
    )
    manifest = Manifest(
        step=_count(path, body, "step"),
        versions=_strings(path, "versions", body.get("versions")),
        computed_on=_computed_on(path, body.get("computed_on", [])),
        tables=_tables(path, body.get("tables")),
        files=_files(path, body.get("files")),
    )
    _check_references(path, manifest)
    _check_place(folder, manifest)
    return manifest


def _count(path: Path, entry: Mapping[str, Any], key: str) -> int:
    value = entry.get(key)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise CheckpointError(f"{path}: '{key}' is not a whole number from 0")
    return value


def _strings(path: Path, name: str, entries: Any) -> dict[str, str]:
    require(
        isinstance(entries, dict) and all(isinstance(value, str) for value in entries.values()),
        path,
        f"'{name}' is not a map of strings",
    )
    return dict(entries)


def _computed_on(path: Path, entries: Any) -> tuple[dict[str, str], ...]:
    require(isinstance(entries, list), path, "'computed_on' is not a list")
    return tuple(_strings(path, "computed_on", entry) for entry in entries)


def _files(path: Path, entries: Any) -> dict[str, FileRecord]:
    require(isinstance(entries, dict), path, "'files' is not an object")
    files = {}
    for name, entry in entries.items():
        require(
            name in (TREE_NAME, TREE_ARRAYS_NAME)
            or (bool(_SHARD_PATH.fullmatch(name)) and set(name.split("/")[1]) != {"."}),
            path,
            f"names a file that is none of a checkpoint's: {name[:200]!r}",
        )
        require(isinstance(entry, dict), path, f"file '{name}' is not an object")
        crc = entry.get("crc32")
        require(
            isinstance(crc, str) and bool(re.fullmatch("[0-9a-f]{8}", crc)), path, f"'{name}' has no crc32"
        )
        files[name] = FileRecord(name, _count(path, entry, "bytes"), int(crc, 16))
    return files


def _tables(path: Path, entries: Any) -> tuple[TableEntry, ...]:
    require(isinstance(entries, list), path, "'tables' is not a list")
    tables = []
    for entry in entries:
        require(isinstance(entry, dict) and isinstance(entry.get("name"), str), path, "a table has no name")
        shards = entry.get("shards")
        require(
            isinstance(shards, list) and all(isinstance(shard, str) for shard in shards) and bool(shards),
            path,
            f"table {entry['name'][:200]!r} has no shards",
        )
        counts = {key: _count(path, entry, key) for key in ("num_rows", "dim", "touched_rows")}
        columns = _columns(path, entry, len(shards))
        tables.append(TableEntry(name=entry["name"], shards=tuple(shards), columns=columns, **counts))
    return tuple(tables)


def _columns(path: Path, entry: Mapping[str, Any], num_shards: int) -> tuple[tuple[int, int], ...]:
    columns = entry.get("columns", [])
    require(
        isinstance(columns, list)
        and len(columns) in (0, num_shards)
        and all(
            isinstance(pair, list) and len(pair) == 2 and all(type(n) is int and n >= 0 for n in pair)
            for pair in columns
        ),
        path,
        f"table {entry['name'][:200]!r} has no valid 'columns'",
    )
    return tuple((first, count) for first, count in columns)


def _check_place(folder: Path, manifest: Manifest) -> None:
    """The folder's name must not belie its step, and nothing in it may lead elsewhere."""
    named = FOLDER_NAME.fullmatch(folder.name)
    if named is not None and int(named[1]) != manifest.step:
        raise CheckpointError(f"{folder}: holds step {manifest.step}, not {named[1]}; rename it")
    below = {parent for name in manifest.files for parent in Path(name).parents} - {Path()}
    for part in sorted(below):
        try:
            status = os.lstat(folder / part)
        except OSError as error:
            raise CheckpointError(f"{folder / part}: cannot be read ({error.strerror})") from error
        require(stat.S_ISDIR(status.st_mode), folder / part, "is not a folder (links are not followed)")


def _check_references(path: Path, manifest: Manifest) -> None:
    names = [table.name for table in manifest.tables]
    require(len(set(names)) == len(names), path, "lists a table twice")
    used = [TREE_NAME, TREE_ARRAYS_NAME, *(shard for table in manifest.tables for shard in table.shards)]
    require(
        sorted(used) == sorted(manifest.files),
        path,
        "the files it lists are not those that the tree and the tables need",
    )
