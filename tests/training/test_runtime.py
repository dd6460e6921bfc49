"""Process settings: threads, generators, and that imports change nothing."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from recgrad.training.run import RANK_SEED
from recgrad.training.runtime import rng_state, seed_everything, set_rng_state, set_threads


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


def test_generators_resume_command_where_they_were() -> None:
    seed_everything(7)
    draws()
    state = rng_state()
    expected = [draws() for _ in range(3)]
    seed_everything(8)
    set_rng_state(state)
    assert [draws() for _ in range(3)] == expected


def test_the_same_seed_draws_the_same() -> None:
    seed_everything(2**40 + 1)
    first = draws()
    seed_everything(2**40 + 1)
    assert draws() == first
    seed_everything(5)
    assert draws() != first


def test_ranks_of_a_run_with_the_largest_seed_have_generators_too() -> None:
    seed_everything(2**64 - 1 + RANK_SEED)
    first = draws()
    seed_everything(RANK_SEED - 1)
    assert draws() != first  # Python's generator tells them apart
    seed_everything(2**64 - 1 + RANK_SEED)
    assert draws() == first


def test_torch_and_numba_get_the_same_threads() -> None:
    import numba

    before = torch.get_num_threads(), numba.get_num_threads()
    try:
        for threads in (1, before[1], 1):
            assert set_threads(threads) == threads
        assert (torch.get_num_threads(), numba.get_num_threads()) == (1, 1)
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])


def test_importing_the_package_is_light_and_changes_nothing() -> None:
    program = (
        "import os, sys, logging, random\n"
        "environment, state, handlers = dict(os.environ), random.getstate(), list(logging.root.handlers)\n"
        "import recgrad, recgrad.config, recgrad.cli.main\n"
        "recgrad.cli.main.build_parser()\n"
        "heavy = {'torch', 'numba', 'pyarrow', 'matplotlib', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert dict(os.environ) == environment and random.getstate() == state\n"
        "assert logging.root.handlers == handlers\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="there are none")
@pytest.mark.parametrize("limited", [False, True])
def test_large_tensors_lie_where_huge_pages_are_asked_for(limited: bool) -> None:
    """And take no more than they did; where addresses are limited, memory is as it was."""
    program = f"""
import resource
import torch
from recgrad.training import runtime

def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))

if {limited}:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + runtime.HUGE_BYTES // 2,) * 2)
before = resident()
runtime.set_up_process(1)
assert resident() - before < 20_000, "kB"
x = torch.zeros(8 << 20)
found = False
with open("/proc/self/smaps") as file:
    for line in file:
        parts = line.split()
        if "-" in parts[0] and not parts[0].endswith(":"):
            first, last = (int(part, 16) for part in parts[0].split("-"))
            here = first <= x.data_ptr() + (4 << 20) < last
        elif parts[0] == "VmFlags:" and here:
            found = "hg" in parts
print(found)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    counted = Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    assert said.stdout.strip() == str(not limited and not counted)
