"""Ids sent before their batch's turn: the same numbers, bit for bit, as when they are sent in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recgrad.embedding.local.engine import Ids
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.errors import DataError
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS

pytest.importorskip("torchrec", exc_type=(ImportError, OSError))

STEPS = 4
KINDS = ("table_wise", "row_wise", "column_wise", "data_parallel")
SIZES = {"user": 37, "tags": 50, "item": 41}


def build(kind: str) -> Any:
    from recgrad.embedding.sharded.engine import ShardedEngine

    tables = [TableSpec(name, rows, 8, sharding_types=(kind,)) for name, rows in SIZES.items()]
    lookups = [
        LookupSpec("user", "user", "user"),
        LookupSpec("tags", "tags", "tags", pooling="mean"),
        LookupSpec("item", "item", "item"),
        LookupSpec("clicks", "clicks", "item", sequence=True),
    ]
    engine = ShardedEngine(tables, lookups, keys=tuple(SIZES), sequence_keys=("clicks",), seed=7)
    return engine, SPARSE_OPTIMIZERS["adagrad_optimizer"](engine, lr=0.1)


def batch(step: int, rank: int) -> tuple[Ids, Ids]:
    """Ids of a rank's batch: ranks differ in rows, and one has none in the second step."""
    rng = np.random.default_rng(100 * step + rank)
    rows = 0 if (step, rank) == (1, 1) else 6 + rank
    bags = [np.ones(rows, int), rng.integers(0, 4, rows), rng.integers(0, 3, rows)]
    ids = np.concatenate([rng.integers(0, n, b.sum()) for n, b in zip(SIZES.values(), bags)])
    clicks = torch.tensor(rng.integers(0, 41, rows + 2))
    return (
        Ids(torch.tensor(ids), torch.tensor(np.concatenate(bags), dtype=torch.int32), (rows,) * 3),
        Ids(clicks, torch.ones(len(clicks), dtype=torch.int32), (len(clicks),)),
    )


def outputs(embedded: Any) -> torch.Tensor:
    parts = (embedded.pooled(["user", "tags", "item"]), embedded.sequence("clicks"))
    return torch.cat([part.reshape(-1) for part in parts])


def train(kind: str, ahead: bool) -> tuple[list[bytes], list[Any]]:
    """Outputs of every step and of lookups between steps, and what the rank holds in the end."""
    import torch.distributed as dist

    rank = dist.get_rank()
    engine, optimizer = build(kind)
    seen: list[bytes] = []
    sent = None
    for step in range(STEPS):
        found = outputs(engine(*batch(step, rank)) if sent is None else sent.look_up())
        seen.append(found.detach().numpy().tobytes())
        sent = None
        if ahead and step + 1 < STEPS:
            sent = engine.prepare(*batch(step + 1, rank))
            sent.send()
        found.tanh().sum().backward()
        optimizer.step()
        with torch.inference_mode():  # an evaluation, with the next batch under way
            seen.append(outputs(engine(*batch(50 + step, rank))).numpy().tobytes())
    parts = [
        (name, part.row_ids.tobytes(), part.weights.tobytes(), [s.tobytes() for s in part.states.values()])
        for name, table in engine.tables.items()
        for part in table.parts()
    ]
    return seen, parts


def both_ways() -> dict[str, Any]:
    return {kind: (train(kind, ahead=False), train(kind, ahead=True)) for kind in KINDS}


@pytest.mark.parametrize("world_size", [1, 2])
def test_ids_sent_ahead_give_the_same_bits(run_ranks: Any, world_size: int) -> None:
    for rank in run_ranks(world_size, both_ways):
        for kind, (plain, ahead) in rank.items():
            assert plain[0] == ahead[0], kind
            assert plain[1] == ahead[1], kind


def prepare_alone() -> tuple[bool, str]:
    """One rank prepares, the other does not: nothing waits, and a wrong id is found at once."""
    import torch.distributed as dist

    engine, _ = build("row_wise")
    said = ""
    if dist.get_rank() == 0:
        engine.prepare(*batch(0, 0))
        ids = Ids(torch.tensor([37]), torch.tensor([1, 0, 0], dtype=torch.int32), (1,) * 3)
        try:
            engine.prepare(ids, batch(0, 0)[1])
        except DataError as error:
            said = str(error)
    return engine.sends_ahead, said


def test_preparing_checks_ids_without_the_other_ranks(run_ranks: Any) -> None:
    first, second = run_ranks(2, prepare_alone)
    assert first == (True, "feature 'user': id 37 is outside table 'user' of 37 rows")
    assert second == (True, "")
