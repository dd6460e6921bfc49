"""Kernels of a run of several ranks: one rank of a machine has them compiled, the others wait for them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recgrad.training import compilers
from recgrad.training.processes import Environment, Processes

if not sys.platform.startswith("linux"):
    pytest.skip("elsewhere no rank compiles ahead", allow_module_level=True)


class Rank(Processes):
    """A rank of several, which hears what the first one has told."""

    def __init__(self, rank: int, local_rank: int, heard: list[Any]) -> None:
        super().__init__(Environment(rank, 4, local_rank, 2, distributed=True))
        self.heard = heard

    def gather(self, value: Any) -> list[Any]:
        self.told = value
        return [*self.heard, value]


@pytest.fixture
def compiler() -> Iterator[subprocess.Popen[bytes]]:
    """A process that takes long."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, compiler: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What is compiled ahead, and what is expected of others and how long."""
    found: dict[str, Any] = {}

    def compile_ahead(wanted: Any, processes: int) -> list[int]:
        found["ahead"] = wanted
        return [compiler.pid]

    def expect(wanted: Any, at_work: Callable[[], bool]) -> None:
        found["expected"], found["at_work"] = wanted, at_work

    monkeypatch.setattr(compilers, "compile_ahead", compile_ahead)
    monkeypatch.setattr(compilers, "expect", expect)
    return found


def test_the_first_rank_of_a_machine_compiles_and_the_others_wait(
    asked: dict[str, Any], compiler: subprocess.Popen[bytes]
) -> None:
    wanted: Any = ["kernels"]
    first = Rank(0, 0, [])
    compilers.compile_for_ranks(wanted, first)
    assert asked == {"ahead": wanted}
    asked.clear()
    compilers.compile_for_ranks(wanted, Rank(1, 1, [first.told]))
    assert asked.pop("expected") == wanted
    at_work = asked.pop("at_work")
    assert not asked
    assert at_work()
    compiler.kill()
    compiler.wait()
    assert not at_work()


def test_nobody_waits_for_another_machine_nor_for_what_is_done(
    asked: dict[str, Any], compiler: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: Any = ["kernels"]
    first = Rank(0, 0, [])
    compilers.compile_for_ranks(wanted, first)
    asked.clear()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(compilers, "host_identity", lambda: "another machine")
        compilers.compile_for_ranks(wanted, Rank(3, 1, [first.told]))
    compiler.kill()
    compiler.wait()
    done = Rank(0, 0, [])
    compilers.compile_for_ranks(wanted, done)
    asked.clear()
    compilers.compile_for_ranks(wanted, Rank(1, 1, [done.told]))
    assert not asked


def test_a_process_alone_compiles_for_itself(asked: dict[str, Any]) -> None:
    wanted: Any = ["kernels"]
    compilers.compile_for_ranks(wanted, Processes())
    assert asked == {"ahead": wanted}
