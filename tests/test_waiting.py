"""Waiting threads sleep where others want the cores."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from recgrad import waiting
from recgrad.waiting import Use, considerate_threads, cores_in_use, others_want

STAT = """cpu  400 0 100 1000 50 0 0 0 0 0
cpu0 100 0 50 600 20 0 0 0 0 0
cpu1 300 0 50 400 30 0 0 0 0 0
cpu10 0 0 0 9999 0 0 0 0 0 0
intr 1 2 3
"""


def test_idle_time_of_the_cores_that_are_ours() -> None:
    tick = os.sysconf("SC_CLK_TCK")
    assert cores_in_use({0, 1}, STAT).idle == pytest.approx((600 + 20 + 400 + 30) / tick)
    assert cores_in_use({1}, STAT).idle == pytest.approx(430 / tick)


@pytest.mark.parametrize(
    ("idle", "own", "cores", "threads", "wanted"),
    [
        (0.0, 2.0, 2, 2, False),  # all of it is ours
        (0.5, 1.5, 2, 2, False),
        (0.0, 1.8, 2, 2, False),  # a system always has something to do
        (0.0, 1.6, 2, 2, False),
        (0.0, 1.4, 2, 2, True),
        (0.0, 0.2, 2, 2, True),
        (0.0, 4.0, 8, 4, False),  # others use what we leave
        (0.0, 3.0, 8, 4, True),
        (3.0, 1.0, 8, 4, False),
    ],
)
def test_others_want_what_our_threads_do_not_leave(
    idle: float, own: float, cores: int, threads: int, wanted: bool
) -> None:
    assert others_want(Use(10.0, 5.0, 7.0), Use(11.0, 5.0 + idle, 7.0 + own), cores, threads) == wanted
    assert (
        others_want(Use(10.0, 5.0, 7.0), Use(10.25, 5.0 + idle / 4, 7.0 + own / 4), cores, threads) == wanted
    )


class Library:
    """libgomp, as far as the watch asks it."""

    def __init__(self) -> None:
        self.teams: list[int] = []

    def omp_get_num_procs(self) -> int:
        return 4

    def GOMP_parallel(self, function: Any, argument: Any, threads: Any, flags: Any) -> None:  # noqa: N802
        self.teams.append(threads.value)


def sleeping() -> bool:
    return any(thread.name == "recgrad-sleeping-team" for thread in threading.enumerate())


def test_watch_follows_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    library, wanted, looked = Library(), [True], threading.Semaphore(0)

    def look(*_: object) -> bool:
        looked.release()
        return wanted[0]

    monkeypatch.setattr(waiting, "loaded_library", lambda: library)
    monkeypatch.setattr(waiting, "threads_spin", lambda: True)
    monkeypatch.setattr(waiting, "cores_of_places", lambda: {0})
    monkeypatch.setattr(waiting, "PERIOD", 0.001)
    monkeypatch.setattr(waiting, "others_want", look)

    def looks(count: int) -> None:
        for _ in range(count):
            assert looked.acquire(timeout=60)

    with considerate_threads(2):
        with considerate_threads(2):  # a run inside another's: one watch
            assert sum(thread.name == "recgrad-waiting" for thread in threading.enumerate()) == 1
        looks(3)
        assert sleeping()
        assert library.teams == [5]
        wanted[0] = False
        looks(waiting.QUIET_LOOKS + 3)
        assert not sleeping()
        wanted[0] = True
        looks(3)
        assert sleeping()
    assert not sleeping()
    with considerate_threads(1):
        assert not any(thread.name == "recgrad-waiting" for thread in threading.enumerate())


# How often libgomp's second thread went to sleep by itself in 200 parallel regions, beside a sleeping team.
PROGRAM = """
import os, threading, torch
from pathlib import Path
from recgrad.openmp import loaded_library
from recgrad.waiting import SleepingTeam
torch.set_num_threads(2)
known = set(os.listdir("/proc/self/task"))
x = torch.zeros(400_000)
x.add_(1)
(worker,) = set(os.listdir("/proc/self/task")) - known
def sleeps():
    status = Path(f"/proc/self/task/{worker}/status").read_text()
    return int(status.split("\\nvoluntary_ctxt_switches:")[1].split()[0])
team = SleepingTeam(loaded_library())
before = sleeps()
for _ in range(200):
    x.add_(1)
    threading.Event().wait(0.0005)
print(sleeps() - before)
team.end()
assert x.sum() == 201 * 400_000
"""


@pytest.mark.skipif(
    not waiting.STAT.exists() or len(os.sched_getaffinity(0)) < 2, reason="one core, or no Linux"
)
def test_threads_sleep_beside_a_sleeping_team() -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))
    }
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, check=True, capture_output=True, text=True
    )
    assert int(result.stdout) > 150
