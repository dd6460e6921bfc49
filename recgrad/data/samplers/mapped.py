"""Tables of samplers as memory-mapped files: built once, shared by all processes of a machine.

A table is kept in the user's cache folder as an Arrow file of one record batch, whose buffers are mapped
and not read. Its name says of which files it was made, with their sizes and times, so that a table that
was changed is built again, and the one of before is removed. Tables that are not local files (`s3://`,
`odps://`) are built by each process: that they have not changed cannot be known without reading them.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt
import pyarrow as pa

from recgrad.data.readers.files import list_files

logger = logging.getLogger("recgrad.data")
_FORMAT = 1
_SUFFIX, _LOCK, _PARTIAL = ".arrow", ".lock", ".tmp"
_TICK_SECS = 0.02
"""Longer than file systems take to give another time to a file that changes again."""
_DAY_SECS, _UNUSED_DAYS = 86_400.0, 30
_SOURCE = b"recgrad.source"
_cleaned: set[Path] = set()


def mapped_table(kind: str, path: str, source: object, build: Callable[[], pa.RecordBatch]) -> pa.RecordBatch:
    """What `build` makes of the files at `path`, mapped from a file.

    Args:
        kind: what the table is, such as "items".
        path: a file, glob or folder, or a table address.
        source: all that the table depends on but the content of its files; has a repr that says it.
        build: makes it.
    """
    folder = _folder()
    if folder is None:
        return build()
    stamp = _stamp(path)
    if not stamp:
        return _write(folder, build(), path, None)
    key = _digest(f"{_FORMAT} {kind} {os.path.abspath(path)} {source!r}")
    target = folder / f"{key}-{_digest(repr(stamp))}{_SUFFIX}"
    found = _open(target)
    if found is None:
        with _locked(folder, key):
            found = _open(target)
            if found is None:
                batch = build()
                if _stamp(path) != stamp:  # it changed while it was read
                    return batch
                found = _write(folder, batch, stamp[0].path, target)
                _clean(folder, key, target)
    return found


def array_of(batch: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    """A column of numbers as it lies in the file; it cannot be written to."""
    column: npt.NDArray[Any] = batch.column(name).to_numpy(zero_copy_only=True)
    return column


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _folder() -> Path | None:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = Path(root) / "recgrad" / "samplers"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        logger.warning(
            "%s: cannot be made (%s), so each process holds its own copy of sampler tables; set "
            "XDG_CACHE_HOME", path, error.strerror,
        )  # fmt: skip
        return None
    return path


class _State(NamedTuple):
    """A file as it was found."""

    path: str
    device: int
    inode: int
    size: int
    changed_ns: int


def _stamp(path: str) -> list[_State]:
    """Which files these are, and when they changed; nothing if that cannot be known."""
    if path.startswith("odps://"):
        return []
    files = list_files(path, ("",))
    if not all(file.local for file in files):
        return []
    found = [(file.path, os.stat(file.path)) for file in files]
    # A change within the same tick of the clock would not be seen later.
    if 0 <= time.time() - max(state.st_mtime for _, state in found) < _TICK_SECS:
        time.sleep(_TICK_SECS)
        return _stamp(path)
    return [
        _State(name, state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns) for name, state in found
    ]


def _open(path: Path) -> pa.RecordBatch | None:
    try:
        with pa.memory_map(str(path)) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
        with suppress(OSError):
            os.utime(path)  # so that it is seen to be in use
        return batch
    except FileNotFoundError:
        return None
    except (OSError, pa.ArrowException):
        return None  # cut short by a machine that stopped: built again


def _write(folder: Path, batch: pa.RecordBatch, path: str, target: Path | None) -> pa.RecordBatch:
    """Keep the batch under `target`, or under no name for this process alone; returns it mapped."""
    metadata = {**(batch.schema.metadata or {}), _SOURCE: path.encode()}
    try:
        descriptor, name = tempfile.mkstemp(_PARTIAL, dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                schema = batch.schema.with_metadata(metadata)
                with pa.ipc.new_file(file, schema) as writer:
                    writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
                file.flush()
                os.fsync(file.fileno())
            mapped = _open(Path(name))
            if target is not None and mapped is not None:
                os.replace(name, target)
            return batch if mapped is None else mapped
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)
    except OSError as error:
        logger.warning(
            "%s: cannot be written to (%s), so this process holds its own copy of '%s'",
            folder, error.strerror, path,
        )  # fmt: skip
        return batch


@contextmanager
def _locked(folder: Path, key: str) -> Iterator[None]:
    """One process at a time builds a table; the others wait for it, and map it."""
    try:
        lock = os.open(folder / f"{key[:2]}{_LOCK}", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:  # a folder that can be read alone: tables are mapped or built, not kept
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _clean(folder: Path, key: str, target: Path) -> None:
    """Remove other states of this table; once a process, what is left of others.

    Processes that have mapped a file keep it.
    """
    for path in folder.glob(f"{key}-*{_SUFFIX}"):
        if path != target:
            with suppress(OSError):
                path.unlink()
    if folder not in _cleaned:
        _cleaned.add(folder)
        for path in folder.iterdir():
            with suppress(OSError):
                if path != target and _is_left(path):
                    path.unlink()


def _is_left(path: Path) -> bool:
    """Whether a file is of a process that ended, of a source that is gone, or unused for long."""
    if path.suffix == _LOCK:
        return False
    age = time.time() - path.stat().st_mtime
    if path.suffix == _PARTIAL:
        return age > _DAY_SECS
    return age > _UNUSED_DAYS * _DAY_SECS or _source_is_gone(path)


def _source_is_gone(path: Path) -> bool:
    try:
        with pa.memory_map(str(path)) as file:
            source = (pa.ipc.open_file(file).schema.metadata or {}).get(_SOURCE, b"").decode()
    except pa.ArrowException:
        return True
    return not os.path.exists(source)
