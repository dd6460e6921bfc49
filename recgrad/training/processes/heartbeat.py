"""Signs of life: a thread that says now and then what its process does."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType

from recgrad.training.processes.board import Beat, Board

EVERY_SECS = 0.25
# One store hears all ranks: many of them speak less often.
MANY_RANKS = 64
MANY_EVERY_SECS = 1.0
# Where a frame on top means that the process waits for others.
RINGS = f"{os.sep}processes{os.sep}rings.py"
COLLECTIVES = (f"torch{os.sep}distributed{os.sep}", f"torchrec{os.sep}distributed{os.sep}", RINGS)
PR_SET_PDEATHSIG = 1
OWN_CODE = f"{os.sep}recgrad{os.sep}"


class Pulse:
    """What this process does now; the main thread writes it, the heartbeat reads it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.waits = False  # for another rank, other than in a collective
        self._now: tuple[str, float, int] = ("starting", time.time(), 0)
        self._number = 0
        self.wake = threading.Event()  # a beat is wanted now
        self._thread = threading.get_ident()
        self._started = start_ticks(os.getpid())

    def doing(self, what: str, *, tell: bool = False) -> None:
        """Say what the process does from now on; `tell` the others at once, not at the next beat.

        For what is rare and takes long: who died in it is then said to have been there.
        """
        self._now = (what, time.time(), self._now[2] + 1)
        if tell:
            self.wake.set()

    @property
    def what(self) -> str:
        """What it does."""
        return self._now[0]

    def beat(self) -> Beat:
        """A sign of life of this moment."""
        self._number += 1
        what, since, moves = self._now
        frame = _frame_of(self._thread)
        return Beat(
            rank=self.rank,
            host=host_identity(),
            pid=os.getpid(),
            started=self._started,
            number=self._number,
            at=time.time(),
            doing=what,
            since=since,
            moves=moves,
            waiting=self.waits or _waits(frame),
            where=_place(frame),
        )


class Heartbeat:
    """Leaves signs of life through a connection of its own, so that it never waits for the main one."""

    def __init__(
        self,
        pulse: Pulse,
        board: Callable[[], Board],
        *,
        every_secs: float,
        watch: int | None = None,
        launched: bool = False,
    ) -> None:
        """`board` connects; `watch` is a rank whose last sign of life is kept here as well.

        A rank that was `launched` is asked to stop, as by SIGTERM, when its launcher is gone.
        """
        self.seen: Beat | None = None
        self._pulse = pulse
        self._board = board
        self._every_secs = every_secs
        self._watch = watch
        self._launched = launched
        self._parent = os.getppid()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recgrad-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._pulse.wake.set()
        self._thread.join(timeout=2 * MANY_EVERY_SECS)

    def lost_launcher(self, within_secs: float = 0.0) -> bool:
        """Whether the launcher that started this rank has ended, or does so within some seconds.

        A dying process closes its connections a moment before its children get another parent.
        """
        deadline = time.monotonic() + within_secs
        while self._launched and os.getppid() == self._parent and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._launched and os.getppid() != self._parent

    def _run(self) -> None:
        try:
            board = self._board()
            while True:
                self._pulse.wake.clear()
                board.beat(self._pulse.beat())
                if self._watch is not None:
                    self.seen = board.beat_of(self._watch) or self.seen
                self._pulse.wake.wait(self._every_secs)
                if self._stopped.is_set():
                    return
        except Exception:
            # The store is gone, and with it whoever would read the sign. A run whose launcher was
            # killed must not go on unseen; the rest is for its collectives to find out.
            if self.lost_launcher() and not self._stopped.is_set():
                os.kill(os.getpid(), signal.SIGTERM)


def watch_launcher_alone() -> None:
    """Leave it to the heartbeat to notice the launcher's death.

    Until the ranks have met, the kernel sends a SIGTERM for it: once for every thread of the launcher that
    ends after the one before. A rank that trains would take the second for a command to end at once.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)


@cache
def host_identity() -> str:
    """The machine and its space of process ids: equal for processes that can see each other."""
    try:
        space = os.readlink("/proc/self/ns/pid")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        space, boot = "", ""
    return f"{socket.gethostname()} {boot} {space}"


def start_ticks(pid: int) -> int:
    """When a process began, in the kernel's ticks; −1 when it is gone or a zombie, 0 if unknown."""
    if not os.path.isdir("/proc/self"):
        return 0
    try:
        # The name, in parentheses, may hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    state, ticks = fields[0], int(fields[19])
    return -1 if state in "ZX" else ticks


def is_gone(beat: Beat) -> bool | None:
    """Whether the process of a sign of life has ended; None where that cannot be looked up."""
    if beat.host != host_identity() or beat.started <= 0:
        return None
    return start_ticks(beat.pid) != beat.started


def _frame_of(thread: int) -> FrameType | None:
    """The frame that a thread is in.

    Python up to 3.11 may collect garbage in the midst of looking, while it holds the lock of its list of
    threads: a finalizer that lets another thread run then stops both for good, if that one starts a thread.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread)
    finally:
        if collects:
            gc.enable()


def _waits(frame: FrameType | None) -> bool:
    return frame is not None and any(place in frame.f_code.co_filename for place in COLLECTIVES)


def _place(frame: FrameType | None) -> str:
    """The innermost line of ours, else the innermost line."""
    inner = frame
    while frame is not None and OWN_CODE not in frame.f_code.co_filename:
        frame = frame.f_back
    frame = frame or inner
    return "" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
