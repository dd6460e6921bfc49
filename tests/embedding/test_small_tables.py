"""Tables with fewer rows than ids: their sums are those in the order of the batch, bit for bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.local.small_tables import SUM_BYTES
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.errors import DataError
from recgrad.optim.sparse import SGD

TABLES = 2


def zeros_engine(rows: int, dim: int, storage: str = "PLAIN", lookups_of_table: int = 1) -> LocalEngine:
    names = [f"t{t}" for t in range(TABLES)]
    lookups = [
        LookupSpec(f"{name}.{k}", f"{name}.{k}", name) for name in names for k in range(lookups_of_table)
    ]
    tables = [TableSpec(name, rows, dim, init_fn="nn.init.zeros_", storage=storage) for name in names]
    return LocalEngine(tables, lookups, keys=[lookup.key for lookup in lookups])


@settings(max_examples=40, deadline=None)
@given(
    dim=st.sampled_from([8, 16, 32, 48]),
    storage=st.sampled_from(["PLAIN", "COMPACT"]),
    rows=st.integers(1, 60),
    bags=st.integers(1, 40),
    longest=st.integers(0, 4),  # ids of a bag; 0: one each
    lookups_of_table=st.integers(1, 2),
    passes=st.integers(1, 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums_are_those_in_the_order_of_the_batch(
    dim: int, storage: str, rows: int, bags: int, longest: int, lookups_of_table: int, passes: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    engine = zeros_engine(rows, dim, storage, lookups_of_table)
    optimizer = SGD(engine, lr=1.0)
    names = list(engine.lookups)
    exact: dict[str, Any] = {name: np.zeros((rows, dim), np.float32) for name in engine.tables}
    seen: dict[str, set[int]] = {name: set() for name in engine.tables}
    for _ in range(passes):
        lengths = np.ones(len(names) * bags, np.int32)
        if longest:
            lengths = rng.integers(0, longest + 1, len(lengths)).astype(np.int32)
        values = rng.integers(0, rows, int(lengths.sum()))
        ids = Ids(
            torch.from_numpy(values), torch.from_numpy(lengths), [bags] * len(names), None, single=not longest
        )
        gradient = rng.normal(size=(bags, len(names) * dim)).astype(np.float32)
        engine(ids).pooled(names).backward(torch.from_numpy(gradient))
        at = 0
        for bag, length in enumerate(lengths.tolist()):
            lookup, sample = divmod(bag, bags)
            table = engine.lookups[names[lookup]].table
            for row in values[at : at + length].tolist():
                exact[table][row] += gradient[sample, lookup * dim : (lookup + 1) * dim]
                seen[table].add(row)
            at += length
    optimizer.step()
    for name, sums in exact.items():
        numbers, weights = engine.export_table(name)
        assert numbers.tolist() == sorted(seen[name])
        np.testing.assert_array_equal(weights, -sums[numbers])


BEYOND = SUM_BYTES // 64 + 3  # rows; a multiple of 5


@pytest.mark.parametrize(
    ("rows", "dim", "storage", "count", "limit", "small"),
    [
        (10, 16, "PLAIN", 80, math.inf, True),
        (80, 16, "PLAIN", 80, math.inf, True),
        (81, 16, "PLAIN", 80, math.inf, False),  # more rows than ids
        (10, 16, "COMPACT", 80, math.inf, False),
        (10, 20, "PLAIN", 80, math.inf, False),  # rows are not whole vectors
        (10, 16, "PLAIN", 80, 1.0, False),  # each gradient has to be clamped
        (BEYOND, 16, "PLAIN", BEYOND, math.inf, False),  # sums would not stay in the cache
    ],
)
def test_which_tables_are_small(
    rows: int, dim: int, storage: str, count: int, limit: float, small: bool
) -> None:
    """Rows of a small table have one gradient each, that of the sum."""
    engine = zeros_engine(rows, dim, storage)
    values = torch.arange(count).flip(0) % min(rows, 5)
    ids = Ids(values.repeat(TABLES), torch.ones(0), [count] * TABLES, None, single=True)
    output = engine(ids).pooled(list(engine.lookups))
    output.backward(torch.ones_like(output))
    group = engine.groups[dim]
    plan = group._plan(dict.fromkeys(range(TABLES), limit))
    assert plan is not None
    ends = group._planner._work.array("ends", plan.size)[:5]
    assert ends.tolist() == ([1, 2, 3, 4, 5] if small else [count // 5 * i for i in range(1, 6)])


def test_ids_that_were_changed_are_refused() -> None:
    engine = zeros_engine(10, 16)
    optimizer = SGD(engine, lr=1.0)
    values = torch.arange(20).repeat(TABLES) % 10
    ids = Ids(values, torch.ones(0), [20] * TABLES, None, single=True)
    output = engine(ids).pooled(list(engine.lookups))
    output.backward(torch.ones_like(output))
    values[3] = 10
    with pytest.raises(DataError, match="changed between the forward pass and the update"):
        optimizer.step()
