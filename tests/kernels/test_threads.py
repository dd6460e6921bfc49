"""Threads of the kernels: torch's own by libgomp, and Python's where there is none."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.kernels import threads
from recgrad.kernels.parallel import Launches
from recgrad.nn.layer_products import pack
from recgrad.optim.sparse import Adagrad


@pytest.fixture
def no_libgomp(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose loader does not find libgomp."""
    load = ctypes.CDLL

    def missing(name: Any, *args: Any, **kwargs: Any) -> Any:
        if name and "libgomp" in name:
            raise OSError(f"{name}: cannot open shared object file")
        return load(name, *args, **kwargs)

    monkeypatch.setattr(threads.ctypes, "CDLL", missing)
    threads._loaded_openmp.cache_clear()
    yield
    threads._loaded_openmp.cache_clear()


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def trained() -> list[np.ndarray]:
    """Tables after some steps, with enough bags and rows for several tasks of each kernel."""
    names = ["a", "b"]
    tables = [TableSpec("a", 500, 16), TableSpec("b", 20_000, 16, storage="COMPACT")]
    engine = LocalEngine(tables, [LookupSpec(n, n, n) for n in names], keys=names)
    optimizer = Adagrad(engine, lr=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        values = torch.cat([torch.randint(0, t.num_rows, (3000,), generator=generator) for t in tables])
        out = engine(Ids(values, torch.ones(6000, dtype=torch.int32), [3000] * 2, None, True)).pooled(names)
        out.backward(torch.randn(out.shape, generator=generator))
        optimizer.step()
    return [array for name in names for array in engine.export_table(name)]


def test_python_threads_give_the_same_bits(
    three_threads: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert threads._openmp() is not None
    expected = trained()
    request.getfixturevalue("no_libgomp")
    assert threads._openmp() is None
    asked: list[int] = []
    pool = threads._pool

    def counted(threads: int) -> Any:
        asked.append(threads)
        return pool(threads)

    monkeypatch.setattr(threads, "_pool", counted)
    for mine, theirs in zip(expected, trained(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert {2, 3} <= set(asked)  # two tables to plan, more tasks to look up and update


def test_one_task_wakes_no_thread(three_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_openmp", lambda: pytest.fail("asked for threads"))
    engine = LocalEngine([TableSpec("t", 10, 4)], [LookupSpec("l", "k", "t")], keys=["k"])
    optimizer = Adagrad(engine, lr=0.1)
    engine(Ids(torch.tensor([3]), torch.ones(1, dtype=torch.int32), [1])).pooled(["l"]).sum().backward()
    optimizer.step()
    assert engine.export_table("t")[0].tolist() == [3]


@pytest.mark.parametrize("openmp", [True, False])
def test_kernels_of_a_sequence_run_in_their_order_and_once(
    three_threads: None, openmp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each packs what the one before has written; what nobody else holds is kept until then."""
    if not openmp:
        monkeypatch.setattr(threads, "_openmp", lambda: None)
    later = Launches()
    first = torch.arange(96.0).reshape(1, 6, 16)
    panels = [pack(first.clone(), transposed=False, run=later.add).values]
    for _ in range(5):
        panels.append(pack(panels[-1].reshape(1, 6, 16), transposed=False, run=later.add).values)
        panels[-1].fill_(-1)
    later.run()
    assert panels[-1].reshape(1, 6, 16).equal(first)
    panels[-1].fill_(-1)
    later.run()
    assert panels[-1].eq(-1).all()
