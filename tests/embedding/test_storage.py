"""AUTO storage: a table begins with the rows that are touched and becomes plain when it is half full."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.embedding.local import table as table_module
from recgrad.embedding.local.changes import ChangeLog
from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse import Adagrad, Adam


@pytest.fixture(autouse=True)
def none_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "SMALL_BYTES", 0)


def engine_of(storage: str, rows: int, dim: int, kind: str = "FP32", tables: int = 2) -> LocalEngine:
    names = [f"t{i}" for i in range(tables)]
    return LocalEngine(
        [TableSpec(name, rows, dim, storage=storage, data_type=kind) for name in names],
        [LookupSpec(name, name, name) for name in names],
        keys=names,
        seed=3,
    )


def step(engine: LocalEngine, optimizer: Any, ids: np.ndarray, seed: int) -> np.ndarray:
    """One step on ids [tables, rows]; gives what was looked up."""
    given_ids = Ids(
        torch.from_numpy(ids.ravel()),
        torch.ones(ids.size, dtype=torch.int32),
        [ids.shape[1]] * len(ids),
        single=True,
    )
    output = engine(given_ids).pooled(list(engine.tables))
    gradient = np.random.default_rng(seed).normal(size=output.shape).astype(np.float32)
    output.backward(torch.from_numpy(gradient))
    optimizer.step()
    return output.detach().numpy().copy()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["FP32", "FP16", "BF16"]), st.sampled_from([1, 4, 16, 19]))
def test_it_learns_what_a_plain_table_learns(seed: int, kind: str, dim: int) -> None:
    """Outputs, rows and states, bit for bit, before and after it has become plain."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(2, 300))
    engines = [engine_of(storage, rows, dim, kind) for storage in ("AUTO", "PLAIN", "COMPACT")]
    optimizers = [Adam(engine, lr=0.1) for engine in engines]
    for number in range(8):
        ids = rng.integers(0, rows, (2, int(rng.integers(1, 60))))
        first, *others = [
            step(engine, optimizer, ids, number) for engine, optimizer in zip(engines, optimizers)
        ]
        assert all(first.tobytes() == other.tobytes() for other in others)
    for name in engines[0].tables:
        parts = [next(iter(engine.tables[name].parts())) for engine in engines]
        for other in parts[1:]:
            np.testing.assert_array_equal(parts[0].row_ids, other.row_ids)
            assert parts[0].weights.tobytes() == other.weights.tobytes()
            for state, values in parts[0].states.items():
                assert values.tobytes() == other.states[state].tobytes()
        assert engines[0].tables[name].touched == len(parts[0].row_ids)


def test_it_becomes_plain_when_half_of_it_is_touched() -> None:
    engine = engine_of("AUTO", 100, 4, tables=1)
    optimizer, table = Adagrad(engine, lr=0.1), engine.tables["t0"]
    for number, compact in enumerate([True, True, False, False]):
        step(engine, optimizer, np.arange(25 * number, 25 * (number + 1))[None] % 100, number)
        assert table.compact == compact, number
    assert table.memory().index_bytes == 0
    assert table.touched == 100


def test_rows_of_a_checkpoint_make_it_plain_too() -> None:
    engine = engine_of("AUTO", 100, 4, tables=1)
    optimizer = Adagrad(engine, lr=0.1)
    rows = np.arange(0, 100, 2)
    engine.import_table("t0", rows, np.ones((50, 4), np.float32))
    engine.import_table("t0", rows + 1, np.ones((50, 4), np.float32))
    assert not engine.tables["t0"].compact
    assert engine.tables["t0"].touched == 100
    step(engine, optimizer, np.arange(100)[None], 0)


def test_it_stays_compact_while_others_know_its_slots() -> None:
    engine = engine_of("AUTO", 100, 4, tables=1)
    optimizer, table = Adagrad(engine, lr=0.1), engine.tables["t0"]
    copy = table.begin_copy()
    for number in range(4):
        step(engine, optimizer, np.arange(80)[None], number)
    assert table.compact
    assert not len(copy()[0].row_ids)
    step(engine, optimizer, np.arange(80)[None], 4)
    assert not table.compact
    logged = engine_of("AUTO", 100, 4, tables=1)
    optimizer = Adagrad(logged, lr=0.1)
    log = ChangeLog(logged.tables["t0"])
    for number in range(3):
        step(logged, optimizer, np.arange(80)[None], number)
    assert logged.tables["t0"].compact
    assert len(log.take().keys) == 80


@pytest.mark.parametrize(("rows", "plain"), [(1_000, True), (1_000_000, False), (100_000_000, False)])
def test_what_is_small_is_plain_from_the_start(
    rows: int, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert engine_of("AUTO", rows, 16, tables=1).tables["t0"].compact != plain


def test_an_index_that_was_outgrown_is_given_back_after_the_next_batch() -> None:
    engine = engine_of("COMPACT", 1 << 20, 4, tables=1)
    optimizer = Adagrad(engine, lr=0.1)
    sizes = []
    for number in range(5):
        step(engine, optimizer, np.arange(8192 * number, 8192 * (number + 1))[None], number)
        sizes.append(engine.tables["t0"].memory().index_bytes // 8)
    assert sizes[3:] == [(1 << 16) + (1 << 15), 1 << 16]
