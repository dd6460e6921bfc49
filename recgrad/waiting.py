"""How torch's threads wait for each other: spinning on free cores, sleeping beside busy processes.

libgomp's threads spin for some milliseconds before they sleep. On an idle machine that is best: waking a
sleeping thread costs 50 microseconds and more, at some fifty places of a step. Beside other busy processes
it is the worst that one can do: a thread spins on the very core that the thread it waits for needs.

libgomp reads its settings once, when it is loaded, but it has a rule of its own for the second case: with
more threads in its care than there are cores, those that wait spin for a hundred turns only. So a watch looks
a few times a second how busy others keep the cores, and where they do it starts a second team of
threads, which sleeps, and ends it when the cores are free again:

    others idle          threads of torch: T <= cores              → they spin
    others busy          T + a sleeping team of cores + 1 > cores  → they sleep

Nothing that is computed changes by it: the number of torch's threads stays.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from recgrad.openmp import cores_of_places, loaded_library, threads_spin

STAT = Path("/proc/stat")
PERIOD = 0.25  # seconds between two looks; the kernel counts in hundredths
SHARE = 0.5  # of a core: what others may use before threads sleep; below it spinning still gains
QUIET_LOOKS = 4  # looks at free cores until threads spin again


class Use(NamedTuple):
    """How cores were used up to a moment, in seconds."""

    moment: float
    idle: float
    own: float


@contextmanager
def considerate_threads(threads: int) -> Iterator[None]:
    """Have torch's waiting threads sleep in here while other processes keep their cores busy.

    Nothing is done where the user said how threads wait (GOMP_SPINCOUNT, OMP_WAIT_POLICY), for one
    thread, and where there is no libgomp or no /proc/stat.

    Args:
        threads: how many threads torch computes with.
    """
    library = loaded_library()
    if threads < 2 or library is None or not threads_spin() or not STAT.exists():
        yield
        return
    with _lock:
        watch = None if _watched() else _Watch(library, threads)
    try:
        yield
    finally:
        if watch is not None:
            watch.end()


_lock = threading.Lock()


def _watched() -> bool:
    """Whether this process has a watch: a run may be inside another one's."""
    return any(isinstance(thread, _Watch) for thread in threading.enumerate())


class _Watch(threading.Thread):
    """Looks at the cores now and then, and sends threads to sleep or lets them spin."""

    def __init__(self, library: Any, threads: int) -> None:
        super().__init__(name="recgrad-waiting", daemon=True)
        self._library = library
        self._threads = threads
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        cores = cores_of_places() or os.sched_getaffinity(0)
        team: SleepingTeam | None = None
        quiet, before = 0, cores_in_use(cores)
        while not self._ended.wait(PERIOD):
            now = cores_in_use(cores)
            wanted = others_want(before, now, len(cores), self._threads)
            quiet, before = 0 if wanted else quiet + 1, now
            if wanted and team is None:
                team = SleepingTeam(self._library)
            elif team is not None and quiet >= QUIET_LOOKS:
                team.end()
                team = None
        if team is not None:
            team.end()

    def end(self) -> None:
        self._ended.set()
        self.join()


def others_want(before: Use, now: Use, cores: int, threads: int) -> bool:
    """Whether other processes used more of the cores than this one's threads leave them."""
    seconds = now.moment - before.moment
    others = seconds * cores - (now.idle - before.idle) - (now.own - before.own)
    return others > seconds * (max(cores - threads, 0) + SHARE)


def cores_in_use(cores: set[int], stat: str | None = None) -> Use:
    """How long these cores have been idle, and how long this process has computed, up to now.

    Args:
        cores: their numbers.
        stat: the text of /proc/stat; read if None.
    """
    moment, own = time.monotonic(), time.process_time()
    ticks = 0
    for line in (STAT.read_text() if stat is None else stat).splitlines():
        name, *counts = line.split()
        if name[:3] == "cpu" and name[3:].isdecimal() and int(name[3:]) in cores:
            ticks += int(counts[3]) + int(counts[4])  # idle, and idle until a disk answers
    return Use(moment, ticks / os.sysconf("SC_CLK_TCK"), own)


class SleepingTeam:
    """Threads of libgomp that sleep, more of them than there are cores.

    A team lives as long as the thread that called for it. Its work is `free(NULL)`: nothing.
    """

    def __init__(self, library: Any) -> None:
        self._ended = threading.Event()
        begun = threading.Event()
        nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
        size = library.omp_get_num_procs() + 1

        def hold() -> None:
            library.GOMP_parallel(nothing, None, ctypes.c_uint(size), ctypes.c_uint(0))
            begun.set()
            self._ended.wait()

        self._thread = threading.Thread(target=hold, name="recgrad-sleeping-team", daemon=True)
        self._thread.start()
        begun.wait()

    def end(self) -> None:
        """Let the threads end."""
        self._ended.set()
        self._thread.join()
