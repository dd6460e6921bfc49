"""Whether the files of a bundle are as they were written."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from recgrad.errors import BundleError, system_reason
from recgrad.serving.manifest import TABLES, FileRecord

_CHUNK_BYTES = 4 << 20
_THREADS = 4


def checksum_of(path: Path) -> FileRecord:
    """Size and checksum of a file, read in pieces, so that memory stays small and no page is mapped."""
    crc, size = 0, 0
    with open(path, "rb", buffering=0) as file:
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        while count := file.readinto(buffer):
            crc = zlib.crc32(buffer[:count], crc)
            size += count
    return FileRecord(size, crc)


@contextmanager
def checking(
    folder: Path, files: Mapping[str, FileRecord], *, tables: bool = True
) -> Iterator[Callable[[], None]]:
    """Compare every file with what the manifest says of it; tables are read beside what is done meanwhile.

    Args:
        folder: the bundle.
        files: by path in it.
        tables: whether bytes of tables are compared too; if not, only their sizes are.

    Yields:
        A function that waits for the tables.

    Raises:
        BundleError: a file is missing, of another size, or changed.
    """
    for name, record in files.items():
        _check_size(folder, name, record)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Large files first, so that no thread is left with one at the end. zlib and read release the GIL.
    names = sorted(files, key=lambda name: -files[name].num_bytes)
    with ThreadPoolExecutor(min(_THREADS, cores)) as pool:

        def check(name: str) -> None:
            _check_content(folder / name, files[name])

        for name in names:
            if PurePosixPath(name).parts[0] != TABLES:
                check(name)
        running = [
            pool.submit(check, name) for name in names if tables and PurePosixPath(name).parts[0] == TABLES
        ]

        def finish() -> None:
            for one in running:
                one.result()

        try:
            yield finish
        except BaseException:
            for one in running:
                one.cancel()
            raise


def _check_size(folder: Path, name: str, record: FileRecord) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise BundleError(f"{folder}: the manifest names '{name}', which is not in the bundle")
    try:
        found = os.stat(folder / name)
    except OSError as error:
        raise BundleError(f"{folder / name}: {system_reason(error)}; copy the bundle again") from error
    if not stat.S_ISREG(found.st_mode):
        raise BundleError(f"{folder / name}: is not a regular file; copy the bundle again")
    if found.st_size != record.num_bytes:
        raise BundleError(
            f"{folder / name}: has {found.st_size} bytes instead of {record.num_bytes}; copy the bundle again"
        )


def _check_content(path: Path, record: FileRecord) -> None:
    try:
        found = checksum_of(path)
    except OSError as error:
        raise BundleError(f"{path}: {system_reason(error)}; copy the bundle again") from error
    if found != record:
        raise BundleError(f"{path}: is damaged (its checksum is wrong); copy the bundle again")
