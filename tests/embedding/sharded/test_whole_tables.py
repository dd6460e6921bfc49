"""Bags over whole tables: what the local engine computes, with the ids of each key sent once to a holder."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS

pytest.importorskip("torchrec", exc_type=(ImportError, OSError))

STEPS = 4
KEYS = ("user", "tags")
SIZES = (37, 50)
TABLES = [
    TableSpec("user", 37, 8, sharding_types=("table_wise",)),
    TableSpec("wide", 37, 4, sharding_types=("table_wise",)),
    TableSpec("tags", 50, 16, sharding_types=("table_wise",)),
    TableSpec("fixed", 50, 4, trainable=False, sharding_types=("table_wise",)),
]
LOOKUPS = [
    LookupSpec("user", "user", "user"),
    LookupSpec("tags", "tags", "tags"),
    LookupSpec("user@wide", "user", "wide"),
    LookupSpec("tags@fixed", "tags", "fixed"),
]


def batch(step: int, rank: int, single: bool) -> tuple[Ids, torch.Tensor]:
    """Ids of a rank's batch: ranks differ in rows, and one has none in the second step."""
    rng = np.random.default_rng(100 * step + rank)
    rows = 0 if (step, rank) == (1, 1) else 6 + rank
    # Where bags may hold several ids, a rank whose bags do not must still tell their lengths.
    one_each = single or (step, rank) == (2, 0)
    bags = [np.ones(rows, int), np.ones(rows, int) if one_each else rng.integers(0, 4, rows)]
    ids = np.concatenate([rng.integers(0, n, b.sum()) for n, b in zip(SIZES, bags)])
    lengths = torch.tensor(np.concatenate(bags), dtype=torch.int32)
    noise = torch.tensor(rng.normal(size=512), dtype=torch.float32)
    return Ids(torch.tensor(ids), lengths, (rows,) * 2, single=one_each), noise


def loss_of(engine: Any, step: int, rank: int, single: bool) -> torch.Tensor:
    ids, noise = batch(step, rank, single)
    embedded = engine(ids)
    outputs = [embedded.pooled(["user", "tags", "user@wide"]), embedded.pooled(["user", "tags@fixed"])]
    flat = torch.cat([output.reshape(-1) for output in outputs])
    return (flat.tanh() * noise[: len(flat)]).sum()


def train(single: bool, shared: bool) -> tuple[list[float], dict[str, Any], list[Any]]:
    """The losses of a rank, the rows it holds, and what it sent: numbers of elements by rank."""
    import torch.distributed as dist

    from recgrad.embedding.sharded.engine import ShardedEngine
    from recgrad.training.processes import Environment, Processes

    rank, ranks = dist.get_rank(), dist.get_world_size()
    processes = Processes(Environment(rank, ranks, rank, ranks, distributed=True))
    if shared:
        processes.share_memory()
    assert (processes.group is not None) == shared
    engine = ShardedEngine(TABLES, LOOKUPS, keys=KEYS, seed=7, group=processes.group)
    assert engine._whole is not None
    optimizer = SPARSE_OPTIMIZERS["adagrad_optimizer"](engine, lr=0.1)
    losses, sent = [], []
    real = dist.all_to_all_single

    def counted(**kwargs: Any) -> Any:
        sent.append((str(kwargs["input"].dtype), kwargs["input_split_sizes"]))
        return real(**kwargs)

    with mock.patch.object(dist, "all_to_all_single", counted):
        for step in range(STEPS):
            loss = loss_of(engine, step, rank, single)
            loss.backward()
            losses.append(float(loss.detach()))
            optimizer.step()
    rows = {name: engine.export_table(name) for name in engine.tables}
    held = [(holder.keys, holder.features) for holder in engine._whole.holders]
    processes.leave_memory()
    return losses, rows, [held, sent]


@pytest.mark.parametrize(
    ("ranks", "single", "shared"), [(2, True, False), (2, False, True), (3, False, False), (5, True, True)]
)
def test_ranks_learn_what_one_process_does(run_ranks: Any, ranks: int, single: bool, shared: bool) -> None:
    found = run_ranks(ranks, train, single, shared)
    engine = LocalEngine(TABLES, LOOKUPS, keys=KEYS, seed=7)
    optimizer = SPARSE_OPTIMIZERS["adagrad_optimizer"](engine, lr=0.1)
    for step in range(STEPS):
        each = [loss_of(engine, step, rank, single) for rank in range(ranks)]
        (torch.stack(each).sum() / ranks).backward()
        optimizer.step()
        np.testing.assert_allclose([own[0][step] for own in found], [x.item() for x in each], rtol=1e-5)
    for name in engine.tables:
        expected, weights = engine.export_table(name)
        numbers = np.concatenate([own[1][name][0] for own in found])
        rows = np.concatenate([own[1][name][1] for own in found])
        order = np.argsort(numbers)
        np.testing.assert_array_equal(numbers[order], expected)
        np.testing.assert_allclose(rows[order], weights, rtol=1e-5, atol=1e-6)


def test_a_holder_gets_the_ids_of_a_key_once_and_lengths_only_where_they_vary(run_ranks: Any) -> None:
    for rank, (_, _, (held, sent)) in enumerate(run_ranks(2, train, True, True)):
        assert sorted(name for _, features in held for name in features) == sorted(
            ("user|user|sum", "wide|user|sum", "tags|tags|sum", "fixed|tags|sum")
        )
        rows = len(batch(0, rank, True)[0].lengths) // 2
        header, ids, vectors, gradients = sent[:4]
        assert header == ("torch.int64", [3, 3])
        assert ids == ("torch.int64", [rows * len(keys) for keys, _ in held])
        assert vectors[0] == gradients[0] == "torch.float32"
        assert len(sent) == 4 * STEPS
    kinds = {kind for _, _, (_, sent) in run_ranks(2, train, False, True) for kind, _ in sent}
    assert kinds == {"torch.int64", "torch.int32", "torch.float32"}
