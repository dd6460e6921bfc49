"""Folders that appear whole or not at all.

A writer fills a hidden folder beside the final one and renames it when everything is on the
disk. It holds a lock on the folder while it lives; the kernel drops the lock when the process
dies, however it dies, so a hidden folder without a lock is a leftover and can go.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MARK = ".writing-"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def staged_folder(final: Path) -> Iterator[Path]:
    """A new locked folder beside `final` that becomes `final` when the block ends well.

    A folder that is there already is exchanged in one step and then removed. If the block
    raises, nothing is left behind.
    """
    staging, descriptor = _create_locked(final, folder=True)
    try:
        yield staging
        _fsync_tree(staging)
        _publish(staging, final)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)
    _fsync(final.parent)
    # After an exchange the hidden name holds the folder that was replaced.
    shutil.rmtree(staging, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder so that no reader ever sees half of it under its name."""
    hidden = path.parent / f".{path.name}{_MARK}{secrets.token_hex(8)}"
    with suppress(FileNotFoundError):
        os.rename(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def remove_leftovers(parent: Path, prefix: str) -> list[str]:
    """Remove the hidden folders and files that writers of `prefix`… left when they were killed."""
    removed = []
    for entry in list(os.scandir(parent)):
        if not (entry.name.startswith("." + prefix) and _MARK in entry.name):
            continue
        try:
            descriptor = os.open(entry.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)
            removed.append(entry.name)
        except OSError:
            # Another writer is at work in it, or the file system has no locks to tell.
            continue
        finally:
            os.close(descriptor)
    return removed


def write_file_atomically(path: Path, content: bytes) -> None:
    """Replace a small file in one step, safe on the disk."""
    hidden, descriptor = _create_locked(path, folder=False)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
        os.replace(hidden, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(hidden)
        raise
    finally:
        os.close(descriptor)
    _fsync(path.parent)


def _fsync_tree(root: Path) -> None:
    """Force files and the names of files to the disk, in one go after all are written.

    One by one, each would wait for the disk while the next could be written: half the speed.
    """
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            _fsync(Path(folder, name))
        _fsync(Path(folder))


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create_locked(final: Path, *, folder: bool) -> tuple[Path, int]:
    """A hidden folder or file beside `final`, and the descriptor that holds its lock.

    Another process may take it for a leftover between its making and its locking; then there is
    another try.
    """
    while True:
        hidden = final.parent / f".{final.name}{_MARK}{secrets.token_hex(8)}"
        try:
            if folder:
                os.mkdir(hidden)
                descriptor = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            else:
                descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            if final.parent.is_dir():
                continue
            raise
        if _lock(descriptor) and hidden.exists():
            return hidden, descriptor
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Whether nobody else has the lock; also where the file system has no locks to ask."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _publish(staging: Path, final: Path) -> None:
    try:
        os.rename(staging, final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _exchange(staging, final):
            remove_folder(final)
            os.rename(staging, final)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step; False where the system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    done = call(
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(first),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(second),
        ctypes.c_uint(_RENAME_EXCHANGE),
    )
    return bool(done == 0)
