"""One run a model_dir: a lock that its process holds, and that ends with it.

The lock is POSIX's (`fcntl.lockf`), not flock's: it belongs to the process, so that no child that is
forked from it keeps it alive, and network file systems know it. The process gives it up when it closes any
descriptor of the file, so nothing else here opens the file while it is held.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from recgrad.errors import RecgradError, whole_path
from recgrad.training.processes.heartbeat import host_identity, start_ticks

LOCK_NAME = ".lock"
MAX_BYTES = 4096
LOOK_SECS = 0.02
# A process that was killed gives its memory back before its locks, and looks alive until it is seen to end.
ENDING_SECS = 10.0
ALIVE_SECS = 1.0
_KILLED = 1 << (signal.SIGKILL - 1)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)

_log = logging.getLogger("recgrad.training")
_held: set[tuple[int, int]] = set()
_held_guard = threading.Lock()
os.register_at_fork(after_in_child=_held.clear)  # a child holds none of its parent's locks


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a lock is.

    Attributes:
        host: name of its machine, for people.
        machine: the machine and its space of process ids.
        ticks: when the process began, as its pid may be given again.
        since: when it took the lock, as seconds since the epoch.
    """

    host: str
    machine: str
    pid: int
    ticks: int
    since: float

    @staticmethod
    def here() -> Owner:
        """This process."""
        pid = os.getpid()
        return Owner(socket.gethostname(), host_identity(), pid, start_ticks(pid), time.time())

    @property
    def is_gone(self) -> bool | None:
        """Whether the process has ended or is ending; None where that cannot be looked up."""
        if self.machine != host_identity() or self.ticks <= 0:
            return None
        return start_ticks(self.pid) != self.ticks or _is_killed(self.pid)

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since).strftime("%Y-%m-%d %H:%M:%S")
        return f"host {self.host}, pid {self.pid}, since {since}"


@contextmanager
def hold_model_dir(folder: Path) -> Iterator[None]:
    """Hold the lock of a model_dir, which is made if it is not there.

    What a process that died left is taken over. At the end the lock's file is removed, and the folder
    as well if it was made here and nothing was written.

    Raises:
        RecgradError: another run holds it, or nothing can be written there.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    path = folder / LOCK_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path)
    except FileExistsError as error:
        raise RecgradError(
            f"model_dir {folder}{whole_path(folder)} is a file; choose another --model_dir"
        ) from error
    except OSError as error:
        raise RecgradError(
            f"model_dir {folder}: cannot write ({error.strerror}); choose another --model_dir"
        ) from error
    holder = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == holder:  # not a child that was forked in here
            _release(path, descriptor)
            for one in made:
                with suppress(OSError):
                    os.rmdir(one)


def _release(path: Path, descriptor: int) -> None:
    # Removed before it is given up: who waits for it sees that the file is no longer this one.
    with suppress(OSError):
        if _of(os.stat(path, follow_symlinks=False)) == _identity(descriptor):
            os.unlink(path)
    with _held_guard:
        _held.discard(_identity(descriptor))
    os.close(descriptor)


def _acquire(path: Path) -> int:
    """A descriptor that holds the lock and says whose it is."""
    begin = time.monotonic()
    while True:
        with _held_guard:
            descriptor = _try(path)
        if descriptor is not None:
            return descriptor
        owner = _read(path)
        alive = owner is not None and owner.is_gone is False
        if time.monotonic() - begin > (ALIVE_SECS if alive else ENDING_SECS):
            who = str(owner) if owner is not None else "it does not say who"
            raise RecgradError(
                f"model_dir {path.parent} is in use by another run ({who}); wait until it ends or stop it, "
                "or choose another --model_dir"
            )
        time.sleep(LOOK_SECS)


def _try(path: Path) -> int | None:
    """One try to take the lock; None if another process has it."""
    with suppress(OSError):
        if _of(os.stat(path, follow_symlinks=False)) in _held:
            # By a thread of this process, which would lose it if the file were opened here and closed.
            raise RecgradError(f"model_dir {path.parent} is in use by another run of this process")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RecgradError(f"{path}: is not a regular file; remove it")
        if not _locked(descriptor, path):
            os.close(descriptor)
            return None
        if _of(os.stat(path, follow_symlinks=False)) != _identity(descriptor):
            raise FileNotFoundError
    except FileNotFoundError:  # its owner has removed it in between
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    _held.add(_identity(descriptor))
    _sign(descriptor, path)
    return descriptor


def _locked(descriptor: int, path: Path) -> bool:
    """Whether the lock could be taken; where there are no locks, what the file says must do."""
    before = _parse(os.pread(descriptor, MAX_BYTES, 0))
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            return False
        if before is not None and before.is_gone is False and before.pid != os.getpid():
            return False
        _log.warning("model_dir %s: its file system has no locks; see that no other run uses it", path.parent)
    if before is not None and before.is_gone is None:
        _log.warning(
            "model_dir %s was left by another run (%s), which does not hold it any more; taken over",
            path.parent,
            before,
        )
    return True


def _sign(descriptor: int, path: Path) -> None:
    text = json.dumps(asdict(Owner.here())) + "\n"
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
    except OSError as error:  # a full disk: the lock holds all the same
        _log.warning("%s: cannot be written (%s)", path, error.strerror)


def _is_killed(pid: int) -> bool:
    """Whether a SIGKILL is on its way to a process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        pending = [line.split()[1] for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
        return any(int(mask, 16) & _KILLED for mask in pending)
    except (OSError, ValueError, IndexError):
        return False


def _read(path: Path) -> Owner | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _parse(os.pread(descriptor, MAX_BYTES, 0))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _parse(text: bytes) -> Owner | None:
    """Whose a lock is by what its file says; None if that is torn or not ours."""
    try:
        values = json.loads(text)
        owner = Owner(
            str(values["host"]),
            str(values["machine"]),
            int(values["pid"]),
            int(values["ticks"]),
            float(values["since"]),
        )
        str(owner)  # a moment beyond the calendar has no name
        return owner
    except (ValueError, TypeError, KeyError, OverflowError, OSError, RecursionError):
        return None


def _identity(descriptor: int) -> tuple[int, int]:
    return _of(os.fstat(descriptor))


def _of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
