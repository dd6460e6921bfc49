"""Real processes, started by hand or by the launcher, and what they said."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_SECS = 300  # nothing takes so long but a run that hangs

START = """
import json, os, sys, time
import torch
from recgrad.errors import DataError, RecgradError
from recgrad.training.processes import open_processes

def finish(work, timeout_secs=3):
    try:
        with open_processes(timeout_secs) as processes:
            processes.barrier()
            work(processes)
    except RecgradError as error:
        print(json.dumps([type(error).__name__, getattr(error, "reported", False), str(error)]))
        sys.exit(2)
"""


def _said(out: str) -> tuple[str, bool, str]:
    """The kind of the error that ended a rank, whether another reports it, and its text."""
    kind, reported, message = json.loads(out.strip().splitlines()[-1])
    return kind, reported, message


LAUNCH = """
import sys
from recgrad.cli.launch import launch
line = [sys.executable, "-c", sys.argv[1]]
again = "recgrad train x --continue-train --nproc 2"
sys.exit(launch(line, 2, max_restarts=int(sys.argv[2]), resume_command=again))
"""


def _start_launcher(program: str, max_restarts: int = 0) -> subprocess.Popen[str]:
    """A process with the launcher, which starts two ranks."""
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, START + program, str(max_restarts)],
        env={**env, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def run_ranks(start_rank: Callable[..., Any], tmp_path: Path) -> Callable[..., list[tuple[int, str]]]:
    """`run_ranks(program, world_size, **variables)`: exit code and output of each rank.

    They are started by hand: rank 0 holds the store.
    """

    def run(program: str, world_size: int, **variables: str) -> list[tuple[int, str]]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        shared = {
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        logs = [tmp_path / f"rank_{rank}.log" for rank in range(world_size)]
        ranks = [
            start_rank(START + program, {**shared, "RANK": str(i), "LOCAL_RANK": str(i), **variables}, log)
            for i, log in enumerate(logs)
        ]
        deadline = time.monotonic() + TIMEOUT_SECS
        for rank in ranks:
            rank.join(max(deadline - time.monotonic(), 0))
        codes = [rank.exitcode for rank in ranks]
        for rank in ranks:
            rank.kill()
        texts = [log.read_text() for log in logs]
        assert None not in codes, texts
        return list(zip(codes, texts, strict=True))

    return run


@pytest.fixture(scope="session")
def said() -> Callable[[str], tuple[str, bool, str]]:
    """`said(output)`: the kind of the error that ended a rank, whether another reports it, its text."""
    return _said


@pytest.fixture(scope="session")
def start_launcher() -> Callable[..., subprocess.Popen[str]]:
    """`start_launcher(program, max_restarts)`: the process of the launcher of two ranks."""
    return _start_launcher


@pytest.fixture(scope="session")
def prelude() -> str:
    """What a program of a rank begins with: imports, and `finish(work, timeout_secs)`."""
    return START
