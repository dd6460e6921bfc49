"""Files as checkpoints use them: written with a checksum, read as what anyone may have written.

Nothing is followed or executed: a link, a pipe or a device is refused, JSON is strict and bounded,
and whatever is wrong with a file is a CheckpointError that names it.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from recgrad.errors import CheckpointError

CHUNK_BYTES = 4 << 20


@dataclass(frozen=True)
class FileRecord:
    """Size and checksum of one written file."""

    path: str
    num_bytes: int
    crc32: int


def write_blocks(folder: Path, path: str, blocks: list[bytes | memoryview]) -> FileRecord:
    """Write buffers one after the other to a new file.

    Both the checksum and the write release the interpreter's lock; a chunk is small enough
    to be in the processor's cache when the write follows.
    """
    crc, size = 0, 0
    descriptor = os.open(folder / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for block in blocks:
            for chunk in _chunks(memoryview(block)):
                crc = zlib.crc32(chunk, crc)
                size += len(chunk)
                while chunk:
                    chunk = chunk[os.write(descriptor, chunk) :]
    finally:
        os.close(descriptor)
    return FileRecord(path, size, crc)


def _chunks(view: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


def open_regular(path: Path) -> int:
    """A read-only descriptor of a regular file; links, pipes and devices are refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be opened ({reason_of(error)})") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path}: is not a regular file")
    return descriptor


def read_bytes(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes; a CheckpointError if it cannot be read."""
    descriptor = open_regular(path)
    try:
        with os.fdopen(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            require(size <= limit, path, f"has {size} bytes, more than the {limit} it can have")
            return file.read()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({reason_of(error)})") from error


def check_file(
    path: Path, num_bytes: int, crc32: int, *, verify: bool, doing: Callable[[str], None] | None = None
) -> None:
    """Raise unless the file has the recorded size and, if asked, the recorded checksum.

    `doing` is told now and then how far it has come.
    """
    descriptor = open_regular(path)
    try:
        actual = os.fstat(descriptor).st_size
        if actual != num_bytes:
            raise CheckpointError(f"{path}: has {actual} bytes, the manifest says {num_bytes}")
        if verify:
            found = _crc32_of(descriptor, path, doing)
            if found != crc32:
                raise CheckpointError(
                    f"{path}: is damaged (checksum {found:08x}, the manifest says {crc32:08x})"
                )
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({reason_of(error)})") from error
    finally:
        os.close(descriptor)


def _crc32_of(descriptor: int, path: Path, doing: Callable[[str], None] | None) -> int:
    buffer = memoryview(bytearray(CHUNK_BYTES))
    crc, position = 0, 0
    while count := os.preadv(descriptor, [buffer], position):
        crc = zlib.crc32(buffer[:count], crc)
        position += count
        if doing is not None:
            doing(f"checking {path} ({position / 1e6:,.0f} MB)")
    return crc


def dump_json(value: Any, *, indent: int | None = None) -> bytes:
    """ASCII JSON without NaN or infinity."""
    separators = (",", ": ") if indent else (",", ":")
    return json.dumps(value, allow_nan=False, indent=indent, separators=separators).encode("ascii")


def parse_json(text: bytes, where: str) -> Any:
    """The value of a JSON text; whatever is wrong with it is a CheckpointError."""
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: is not valid JSON ({error})") from error


def require(holds: bool, path: Path | str, problem: str) -> None:
    """Raise a CheckpointError that names the file unless `holds`."""
    if not holds:
        raise CheckpointError(f"{path}: {problem}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def reason_of(error: Exception) -> str:
    """What the system says of an error, or the error itself."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
