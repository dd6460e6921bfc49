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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MARK = ".writing-"
_FAILED = ".failed"
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
        fsync_tree(staging)
        _publish(staging, final)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)
    _fsync(final.parent)
    # After an exchange the hidden name holds the folder that was replaced.
    shutil.rmtree(staging, ignore_errors=True)


def shared_folder(final: Path, name: str) -> Path:
    """The hidden folder in which several processes prepare `final`; `name` is of this one save."""
    return final.parent / f".{final.name}{_MARK}{name}"


def failed_folder(staging: Path) -> Path:
    """What a shared folder is called when the save was given up."""
    return staging.with_name(staging.name + _FAILED)


@contextmanager
def shared_staged_folder(
    final: Path, name: str, failure: str, describe: Callable[[BaseException], str]
) -> Iterator[Path]:
    """A new locked folder that other processes find by its name and that becomes `final`.

    If the block raises, the folder loses its content, gets the description of the error in a
    file called `failure`, and then another name, by which the others know. A rename takes no
    space on a full disk; the description may, and is then absent. `remove_leftovers` removes it.
    """
    staging = shared_folder(final, name)
    os.mkdir(staging)
    descriptor = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor)
        yield staging
        fsync_tree(staging)
        _publish(staging, final)
    except BaseException as error:
        _give_up(staging, failure, describe(error).encode())
        raise
    finally:
        os.close(descriptor)
    _fsync(final.parent)
    shutil.rmtree(staging, ignore_errors=True)


def _give_up(staging: Path, failure: str, reason: bytes) -> None:
    with suppress(OSError):
        write_file_atomically(staging / failure, reason)
    empty_folder(staging, keep=failure)
    if not (staging / failure).exists():
        with suppress(OSError):
            write_file_atomically(staging / failure, reason)
    with suppress(OSError):
        os.rename(staging, failed_folder(staging))


def empty_folder(folder: Path, *, keep: str = "") -> None:
    """Remove what is in a folder, as far as that goes."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        if name != keep:
            shutil.rmtree(folder / name, ignore_errors=True)
            with suppress(OSError):
                os.unlink(folder / name)


def remove_folder(path: Path) -> None:
    """Remove a folder so that no reader ever sees half of it under its name."""
    hidden = path.parent / f".{path.name}{_MARK}{secrets.token_hex(8)}"
    with suppress(FileNotFoundError):
        os.rename(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def remove_leftovers(parent: Path, prefix: str, *, but: str | None = None) -> list[str]:
    """Remove the hidden folders and files that writers of `prefix`… left when they were killed.

    Shared folders whose names begin with `but` are left alone.
    """
    removed = []
    for entry in list(os.scandir(parent)):
        if not (entry.name.startswith("." + prefix) and _MARK in entry.name):
            continue
        if but is not None and entry.name.split(_MARK, 1)[1].startswith(but):
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


def fsync_tree(root: Path) -> None:
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
