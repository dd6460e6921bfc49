"""What OpenMP is told: how threads wait, how many they are, where they run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from recgrad import openmp
from recgrad.errors import RecgradError

# As the command starts: what it does before torch is loaded, then how many threads it would take.
PROGRAM = """
import os, threading
from recgrad.openmp import run_on_any_core
from recgrad.cli.main import main
assert main(["list", "schedules"]) == 0
import torch
from recgrad.training.runtime import set_up_process
threads = set_up_process()
assert torch.get_num_threads() == threads
reads_on = []
def read():
    run_on_any_core()
    reads_on.extend(os.sched_getaffinity(0))
thread = threading.Thread(target=read)
thread.start()
thread.join()
print(threads, len(reads_on))
"""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": " 4,2 "}, 4),
        ({"OMP_NUM_THREADS": "0"}, None),  # libgomp ignores these
        ({"OMP_NUM_THREADS": "many"}, None),
        ({"OMP_NUM_THREADS": ""}, None),
        ({"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2"}, 1),
        ({"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}, None),  # torchrun's own
        ({"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}, 1),
        ({"OMP_NUM_THREADS": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}, 2),
    ],
)
def test_threads_of_the_environment(environment: Mapping[str, str], expected: int | None) -> None:
    assert openmp.threads_of_environment(environment) == expected


def test_flag_before_variable_before_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "usable_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert openmp.choose_threads() == 8
    assert openmp.choose_threads(processes=3) == 2
    assert openmp.choose_threads(processes=20) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert openmp.choose_threads(processes=3) == 5
    assert openmp.choose_threads(12, processes=3) == 12
    with pytest.raises(RecgradError, match="--num_threads: must be at least 1, got 0"):
        openmp.choose_threads(0)


def started(variables: Mapping[str, str]) -> list[str]:
    names = ("OMP_", "GOMP_", "LOCAL_WORLD")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**environment, **variables},
        check=True,
        capture_output=True,
        text=True,
    )
    return result.stdout.split()[-2:]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_bound_threads_get_all_their_places() -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    cores, most = len(os.sched_getaffinity(0)), openmp.usable_cores()
    assert started({"OMP_PROC_BIND": "true"}) == [str(most), str(cores)]
    two = {"GOMP_CPU_AFFINITY": f"{first} {second}", "OMP_WAIT_POLICY": "passive"}
    assert started(two) == [str(min(most, 2)), "2"]
    assert started({"OMP_PLACES": f"{{{second}}}"}) == ["1", "1"]
