"""What is said of kernels that are compiled, and of those that were."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from numba import njit, types

from recgrad.kernels import compile as kernels
from recgrad.kernels.compile import Wanted, compiled_with
from recgrad.nn import layer_kernels, mlp_attention_kernels

SIGNATURE = types.float64(types.float64)


def calling(rule: Any) -> Any:
    def kernel(value: float) -> float:
        return rule(value)

    return kernel


@njit
def twice(value: float) -> float:
    return 2 * value


@njit
def fourfold(value: float) -> float:
    return 4 * value


@pytest.fixture
def said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> pytest.LogCaptureFixture:
    """What is logged with a cache directory of one's own, where nothing is too quick to be told."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernels, "_NOTICEABLE_SECONDS", 0.0)
    compiled_with.cache_clear()
    monkeypatch.setattr(kernels, "_here", set())
    monkeypatch.setattr(logging.getLogger("recgrad"), "propagate", True)
    caplog.set_level("INFO", logger="recgrad")
    return caplog


def test_only_a_kernel_that_was_compiled_is_called_so(said: pytest.LogCaptureFixture) -> None:
    assert compiled_with(calling, twice, SIGNATURE).ctypes(3.0) == 6.0
    assert "it is kept for the next run" in said.text
    said.clear()
    compiled_with.cache_clear()  # as another process would begin
    assert compiled_with(calling, twice, SIGNATURE).ctypes(3.0) == 6.0
    assert said.text == ""


def test_a_kernel_of_a_local_rule_is_not_said_to_be_kept(said: pytest.LogCaptureFixture) -> None:
    @njit
    def thrice(value: float) -> float:
        return 3 * value

    assert compiled_with(calling, thrice, SIGNATURE).ctypes(3.0) == 9.0
    assert "compiled the" in said.text
    assert "for the next run" not in said.text


def test_kernels_that_other_processes_compile_are_waited_for_and_loaded(
    said: pytest.LogCaptureFixture,
) -> None:
    wanted = [Wanted(calling, rule, SIGNATURE) for rule in (twice, fourfold)]
    children = kernels.compile_ahead([*wanted, wanted[0]], processes=2)
    assert len(children) == len(set(kernels._ahead.values())) == 2
    for rule, result in ((twice, 6.0), (fourfold, 12.0)):
        kernel = compiled_with(calling, rule, SIGNATURE)
        assert kernel.ctypes(3.0) == result
        assert kernel.cache_hits == 1, "it was compiled here"
    assert not kernels._ahead
    kernels._here.clear()
    assert kernels.compile_ahead(wanted, processes=2) == [], "nothing is missing"
    assert not kernels._ahead


def test_kernels_that_others_are_at_work_on_are_waited_for(said: pytest.LogCaptureFixture) -> None:
    wanted = [Wanted(calling, rule, SIGNATURE) for rule in (twice, fourfold)]
    _, child = kernels._compile_elsewhere(wanted[:1])  # as of another rank
    kernels.expect(wanted, child.is_alive)
    kernel = compiled_with(calling, twice, SIGNATURE)
    assert (kernel.ctypes(3.0), kernel.cache_hits) == (6.0, 1)
    kernel = compiled_with(calling, fourfold, SIGNATURE)  # they have ended without it
    assert (kernel.ctypes(3.0), kernel.cache_hits) == (12.0, 0)
    kernels._here.clear()
    kernels.expect(wanted, lambda: True)
    assert not kernels._ahead, "nothing is missing"


def test_a_kernel_that_no_other_process_got_done_is_compiled_here(
    said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_compile_elsewhere", lambda group: (0, threading.Thread()))  # it has ended
    kernels.compile_ahead([Wanted(calling, fourfold, SIGNATURE)], processes=2)
    kernel = compiled_with(calling, fourfold, SIGNATURE)
    assert (kernel.ctypes(3.0), kernel.cache_hits) == (12.0, 0)


def test_what_another_process_compiles_holds_no_lock_of_this_one(
    said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lock").write_text("")
    held = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    reads, writes = os.pipe()
    monkeypatch.setattr(kernels, "_build", lambda wanted: time.sleep(1000))
    _, child = kernels._compile_elsewhere([Wanted(calling, twice, SIGNATURE)])
    os.close(held)
    os.close(writes)
    assert os.read(reads, 1) == b"", "the other process would have to close it as well"
    again = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(again, fcntl.LOCK_EX)  # waits until the other process has closed it too
    child.join(0.5)
    assert child.is_alive(), "it closed them by ending"
    os.close(again)
    os.close(reads)


def test_a_process_that_does_not_come_to_an_end_is_ended(
    said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_LONGEST_SECS", 1.0)
    monkeypatch.setattr(kernels, "_build", lambda wanted: time.sleep(1000))
    _, child = kernels._compile_elsewhere([Wanted(calling, twice, SIGNATURE)])
    child.join(60)
    assert not child.is_alive()


def own_kernels() -> list[Wanted]:
    """Kernels with functions that are handed on, which numba would compile into addresses of a process."""
    layers = [Wanted(task) for task in (layer_kernels.row_tasks, layer_kernels.weight_tasks)]
    blocks = (mlp_attention_kernels.forward_block, mlp_attention_kernels.backward_block)
    return layers + [Wanted(mlp_attention_kernels.over_blocks, body) for body in blocks]


@pytest.mark.parametrize("wanted", own_kernels(), ids=lambda one: (one.inner or one.function).__name__)
def test_a_kernel_that_hands_functions_on_is_found_again(wanted: Wanted) -> None:
    kernels._build(wanted)
    assert not kernels._is_missing(wanted)
    assert kernels._build(wanted).cache_hits == 1
