"""Subnormal numbers count as zero in kernels, on every thread, and in torch where it is asked for."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numba import carray, cfunc, types

from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.kernels import simd, threads
from recgrad.kernels.flushing import PROCESSORS
from recgrad.optim.sparse import Adagrad
from recgrad.training.runtime import flushes_subnormals, subnormals_flushed

MOST_THREADS = 4
SMALLEST = float(np.finfo(np.float32).tiny)

pytestmark = pytest.mark.skipif(
    platform.machine() not in PROCESSORS, reason="other processors keep subnormal numbers"
)


@pytest.fixture(params=range(1, MOST_THREADS + 1))
def number(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield int(request.param)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def halve() -> Any:
    """A kernel that writes the half of a number, each thread to a place of its own."""

    @cfunc(types.void(types.int64), nogil=True)
    def kernel(a):  # type: ignore[no-untyped-def]
        number = carray(simd.pointer(a + 8), 1, np.float32)
        out = carray(simd.pointer(a + 16), MOST_THREADS, np.float32)
        out[simd.fetch_add(a, 1)] = number[0] * np.float32(0.5)

    return kernel


def in_sequence(kernel: Any, address: int, tasks: int) -> None:
    threads.run_all_on_threads([(kernel, address, tasks)])


def halves(kernel: Any, number: int, run: Any = threads.run_on_threads) -> list[float]:
    block = np.zeros(2 + MOST_THREADS // 2, np.int64)
    block[1:2].view(np.float32)[0] = SMALLEST
    block[2:].view(np.float32)[:] = -1
    run(kernel, block.ctypes.data, number)
    assert block[0] == number  # each thread came once
    return block[2:].view(np.float32)[:number].tolist()


@pytest.mark.parametrize("openmp", [True, False])
@pytest.mark.parametrize("run", [threads.run_on_threads, in_sequence])
def test_kernels_flush_on_every_thread(
    number: int, halve: Any, openmp: bool, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not openmp:
        monkeypatch.setattr(threads, "_openmp", lambda: None)
    assert not flushes_subnormals()
    assert halves(halve, number, run) == [0.0] * number
    assert not flushes_subnormals()


def torch_keeps(values: torch.Tensor) -> float:
    """The share of subnormal products that torch's threads keep."""
    return float(((values * 0.5) != 0).double().mean())


def test_torch_flushes_on_every_thread_and_goes_back(number: int) -> None:
    values = torch.full((1_000_000,), SMALLEST)
    assert torch_keeps(values) == 1  # the threads are there before
    with subnormals_flushed():
        assert torch_keeps(values) == 0
        with subnormals_flushed():
            pass
        assert torch_keeps(values) == 0
    assert torch_keeps(values) == 1


def test_a_callers_own_setting_stays() -> None:
    torch.set_flush_denormal(True)
    try:
        with subnormals_flushed():
            assert flushes_subnormals()
        assert flushes_subnormals()
    finally:
        torch.set_flush_denormal(False)
    assert not flushes_subnormals()


def test_what_fails_inside_leaves_the_setting_as_it_was() -> None:
    with pytest.raises(KeyError), subnormals_flushed():
        raise KeyError
    assert not flushes_subnormals()


def test_errors_of_other_threads_are_raised_here(number: int) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        threads.call_on_threads(fail)


def trained(number: int) -> list[Any]:
    """A table after some steps with gradients around the smallest normal number."""
    torch.set_num_threads(number)
    engine = LocalEngine([TableSpec("t", 2000, 16)], [LookupSpec("l", "t", "t")], keys=["t"])
    optimizer = Adagrad(engine, lr=SMALLEST, initial_accumulator_value=0.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        ids = torch.randint(0, 2000, (6000,), generator=generator)
        out = engine(Ids(ids, torch.ones(6000, dtype=torch.int32), [6000], None, True)).pooled(["l"])
        out.backward(torch.randn(out.shape, generator=generator) * SMALLEST)
        optimizer.step()
    return [*engine.export_table("t"), *optimizer.export_state("t").values()]


def test_tables_are_the_same_bits_for_any_threads_and_callers() -> None:
    before = torch.get_num_threads()
    try:
        expected = trained(1)
        with subnormals_flushed():
            runs = [trained(number) for number in (1, 2, 3)]
        runs.append(trained(3))
    finally:
        torch.set_num_threads(before)
    for run in runs:
        for own, first in zip(run, expected, strict=True):
            np.testing.assert_array_equal(own, first)
