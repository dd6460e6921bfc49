"""Living tables of several ranks against one process, with ids of 63 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from recgrad.embedding.living import COUNT, DISTANCE, KEYS, LAST, NUM_ROWS, Filter, LivingSpec
from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS

pytest.importorskip("torchrec", exc_type=(ImportError, OSError))

STEPS, ROWS = 25, 12  # rows of all ranks together
SPECS = {
    "a": LivingSpec(40, LAST, init_fn="uniform_,a=-1,b=1", unknown="normal_,mean=0,std=1"),
    "b": LivingSpec(12, DISTANCE, 3, filter=Filter("chance", 0.7), fallback=True),
    "c": LivingSpec(30, COUNT, threshold=2, counters=64, ttl=6),
    "d": LivingSpec(9, LAST, 4, fallback=True),
}
TABLES = [TableSpec(name, NUM_ROWS, 4 if name == "d" else 8, living=own) for name, own in SPECS.items()]
LOOKUPS = [LookupSpec(name, name, name, pooling="mean" if name == "b" else "sum") for name in "abc"]
LOOKUPS += [LookupSpec("d", "d", "d", sequence=True), LookupSpec("d@row", "a", "d")]


def batch(step: int, first: int, last: int) -> tuple[Ids, Ids, torch.Tensor]:
    """Rows first … last − 1 of a step's batch, and a weight for each of their outputs."""
    rng = np.random.default_rng(step)
    # The same ids for all features, from the very first to the very last that there may be.
    numbers = rng.integers(0, 80, (ROWS, 4)) + step
    keys = np.where(numbers % 9 == 0, KEYS - 1 - numbers, (numbers * 0x1F3D5B79ABCDEF01) % KEYS)
    noise = rng.normal(size=(ROWS, 32)).astype(np.float32)
    own = keys[first:last]
    count = last - first
    ones = torch.ones(3 * count, dtype=torch.int32)
    ids = Ids(torch.from_numpy(own[:, :3].T.reshape(-1).copy()), ones, [count] * 3, None, True)
    positions = torch.from_numpy(own[:, 3].copy())
    sequences = Ids(positions, torch.ones(count, dtype=torch.int32), [count], None, True)
    return ids, sequences, torch.from_numpy(noise[first:last])


def outputs(engine: Any, step: int, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids, sequences, noise = batch(step, first, last)
    found = engine(ids, sequences)
    rows = torch.cat([found.pooled(["a", "b", "c", "d@row"]), found.sequence("d")], dim=1)
    return rows, noise


def train(make: Any, first: int, last: int, ranks: int) -> dict[str, Any]:
    """What a rank that has these rows ends with; its loss is such that ranks' means are the whole's."""
    engine = make(TABLES, LOOKUPS, keys=list("abc"), sequence_keys=["d"], seed=3)
    optimizer = SPARSE_OPTIMIZERS["adagrad_optimizer"](engine, lr=0.1)
    for step in range(STEPS):
        engine.train()
        rows, noise = outputs(engine, step, first, last)
        (ranks * (rows.tanh() * noise).sum()).backward()
        optimizer.step()
        engine.eval()  # counts nothing, and admits nobody
        with torch.no_grad():
            outputs(engine, step + 7, first, last)
    with torch.no_grad():
        rows, _ = outputs(engine, STEPS, first, last)
    tables = engine.living_tables()
    return {
        "rows": rows.numpy(),
        "scores": {name: own for name, t in tables.items() if (own := t.export_scores())},
        "turnover": {name: t.turnover() for name, t in tables.items()},
        "weights": {name: engine.export_table(name) for name in tables},
    }


def one_of(ranks: int) -> dict[str, Any]:
    import torch.distributed as dist

    from recgrad.embedding.sharded.engine import ShardedEngine

    own = ROWS // ranks
    return train(ShardedEngine, dist.get_rank() * own, (dist.get_rank() + 1) * own, ranks)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_have_the_ids_of_one_process(ranks: int, run_ranks: Callable[..., list[Any]]) -> None:
    whole = train(LocalEngine, 0, ROWS, 1)
    found = run_ranks(ranks, one_of, ranks)
    assert min(own.evicted + own.expired for own in whole["turnover"].values()) > 0
    rows = np.concatenate([rank["rows"] for rank in found])
    np.testing.assert_allclose(rows, whole["rows"], rtol=0, atol=1e-5)
    for name in SPECS:
        (scores,) = [rank["scores"][name] for rank in found if name in rank["scores"]]
        for key, value in whole["scores"][name].items():
            if key == "window":  # in the order of appearance, which is by rank
                value, scores[key] = (np.array(sorted(map(tuple, own))) for own in (value, scores[key]))
            np.testing.assert_array_equal(scores[key], value, err_msg=f"{name} {key}")
        (here,) = [rank for rank in found if name in rank["scores"]]
        assert here["turnover"][name] == whole["turnover"][name]
        keys, weights = here["weights"][name]
        order = np.argsort(keys)
        np.testing.assert_array_equal(keys[order], whole["weights"][name][0])
        np.testing.assert_allclose(weights[order], whole["weights"][name][1], rtol=0, atol=1e-5)
