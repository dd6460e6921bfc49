"""Kernels that an engine of several ranks names before its first step, to be compiled while a run starts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recgrad.cli.warmup import warm_ranks
from recgrad.embedding.local.engine import Ids, table_kernels
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.kernels.compile import Wanted
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS

pytest.importorskip("torchrec", exc_type=(ImportError, OSError))

ROWS = 64
COLUMNS = {"pack_vectors", "take_columns", "put_columns", "unpack_vectors", "number_tasks"}
# For copies of a checkpoint, which no step here makes, and for bags that have not one id each.
LATER = {"keep_tasks", "sort_task", "gather_task", "offsets_task"}


def ids_of(keys: int, rank: int) -> Ids:
    """Ids that repeat, of the first key, and many, of the others."""
    values = torch.arange(keys * ROWS) * (rank + 3) % 40
    values[:ROWS] %= 4
    return Ids(values, torch.ones(keys * ROWS, dtype=torch.int32), (ROWS,) * keys, single=True)


def first_step(kind: str) -> tuple[set[str], set[str]]:
    """The kernels that an engine of this rank names, and those that a step then needs."""
    import torch.distributed as dist

    from recgrad.embedding.build import TableOptimizer
    from recgrad.embedding.sharded.choice import KernelChoice
    from recgrad.embedding.sharded.engine import ShardedEngine
    from recgrad.kernels import compile as kernels

    sharding, _, other = kind.partition(", ")
    tables = [TableSpec(name, 40, 16, sharding_types=(sharding,)) for name in "abc"]
    lookups = [LookupSpec(name, name, name) for name in "ab"]
    lookups.append(LookupSpec("c", "c", "c", sequence=other == "sequence"))
    optimizer_kind = SPARSE_OPTIMIZERS["adagrad_optimizer"]
    choices = None
    if other == "fused":
        group = dict(optimizer_kind([{"params": []}], lr=0.1).param_groups[0])
        optimizer = TableOptimizer(optimizer_kind, group, "adagrad_optimizer")
        choices = {table.name: KernelChoice("fused", (sharding,), optimizer) for table in tables}
    keys, sequence_keys = ("ab", "c") if other == "sequence" else ("abc", "")
    engine = ShardedEngine(
        tables, lookups, keys=tuple(keys), sequence_keys=tuple(sequence_keys), choices=choices
    )
    optimizer = optimizer_kind(engine, lr=0.1)
    named, built_with = engine.kernels(optimizer), set(kernels._here)
    for _ in range(2):  # a copy of a table has states after its first update
        sequences = ids_of(1, dist.get_rank()) if sequence_keys else None
        embedded = engine(ids_of(len(keys), dist.get_rank()), sequences)
        found = [embedded.pooled(list(keys))] + [embedded.sequence(name) for name in sequence_keys]
        torch.stack([part.square().sum() for part in found]).sum().backward()
        optimizer.step()
    return {text(one) for one in named}, {text(one) for one in kernels._here - built_with}


def text(wanted: Any) -> str:
    inner = "" if wanted.inner is None else f" with {wanted.inner.__qualname__}"
    return f"{wanted.function.__name__}{inner}"


@pytest.fixture
def warmed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What `recgrad warmup` compiles: for one process, and for ranks."""
    found = table_kernels(SPARSE_OPTIMIZERS["adagrad_optimizer"]([{"params": []}], lr=0.1))
    monkeypatch.setattr("recgrad.kernels.compile.compiled", lambda function: found.append(Wanted(function)))
    warm_ranks()
    return {text(one) for one in found}


@pytest.mark.parametrize(
    "kind",
    [
        "table_wise",
        "row_wise",
        "column_wise",
        "data_parallel",
        "table_wise, sequence",
        "table_wise, fused",
    ],
)
def test_the_kernels_of_a_step_are_named_before_it(run_ranks: Any, warmed: set[str], kind: str) -> None:
    both = run_ranks(2, first_step, kind)
    names = both[0][0]
    assert all(named == names for named, _ in both), "one rank of a machine compiles for all"
    needed = set().union(*(used for _, used in both))
    assert needed <= names, "a step compiles them itself"
    assert names - needed <= LATER, "they are compiled for nothing"
    if kind == "table_wise":
        assert needed > COLUMNS | {"offsets_task", "lookup_tasks", "plan_tasks"}
    assert names <= warmed, "`recgrad warmup` leaves them to ranks"
    assert ("reduce_tasks" in needed) == (kind == "data_parallel")
    if kind == "table_wise, fused":
        assert not names
