"""`state_dict` of an optimizer over tables that several ranks hold: the rank's own rows, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.errors import CheckpointError
from recgrad.optim.sparse.adagrad import Adagrad

pytest.importorskip("torchrec", exc_type=(ImportError, OSError))

ROWS, DIM, RANKS = 20, 4, 2
WAYS = ("row_wise", "table_wise", "data_parallel")
LOOKUP = [LookupSpec("t", "t", "t")]


def backward(engine: Any, step: int, rank: int) -> None:
    """Rows and gradients that differ between ranks and steps."""
    rng = np.random.default_rng(10 * step + rank)
    ids = Ids(torch.from_numpy(rng.integers(0, ROWS - 1, 8)), torch.ones(8, dtype=torch.int32), [8])
    engine(ids).pooled(["t"]).backward(torch.tensor(rng.normal(size=(8, DIM)), dtype=torch.float32))


def save_and_load() -> dict[str, Any]:
    """By way to spread: state_dict after 2 steps, and rows after 3, in one go and with a new optimizer."""
    import torch.distributed as dist

    from recgrad.embedding.sharded.engine import ShardedEngine

    rank = dist.get_rank()
    results: dict[str, Any] = {}
    for way in (*WAYS, "column_wise"):

        def build(way: str = way) -> ShardedEngine:
            return ShardedEngine([TableSpec("t", ROWS, DIM, sharding_types=(way,))], LOOKUP, keys=["t"])

        engine = build()
        optimizer = Adagrad(engine, lr=0.1)
        for step in range(2):
            backward(engine, step, rank)
            optimizer.step()
        try:
            state = optimizer.state_dict()
        except CheckpointError as error:
            results[way] = str(error)
            continue
        resumed = build()
        again = Adagrad(resumed, lr=0.9)
        again.load_state_dict(state)
        for new, old in zip(resumed.tables["t"].shards, engine.tables["t"].shards, strict=True):
            for part in old.parts():
                new.write(part.row_ids, part.weights)
        ends = []
        for member, own in ((engine, optimizer), (resumed, again)):
            backward(member, 2, rank)
            own.step()
            ends.append([part.weights for shard in member.tables["t"].shards for part in shard.parts()])
        results[way] = (state, *ends, again.param_groups[0]["lr"])
    return results


def test_state_dict_holds_the_rows_of_the_rank_and_loads_again(run_ranks: Any) -> None:
    ranks = run_ranks(RANKS, save_and_load)
    engine = LocalEngine([TableSpec("t", ROWS, DIM)], LOOKUP, keys=["t"])
    local = Adagrad(engine, lr=0.1)
    for step in range(2):
        for rank in range(RANKS):
            backward(engine, step, rank)
        engine.scale_gradients({"t"}, 1 / RANKS)
        local.step()
    whole = local.state_dict()["state"][0]
    for way in WAYS:
        held = [result[way][0]["state"][0] for result in ranks]
        rows = [own["row_ids"].tolist() for own in held]
        assert all(own["t"] == 2 and own["table"] == "t" for own in held)
        if way == "data_parallel":
            assert rows == [whole["row_ids"].tolist()] * RANKS
        else:
            assert sorted(rows[0] + rows[1]) == whole["row_ids"].tolist()
            assert all(map(len, rows)) == (way == "row_wise")
        for own in held:
            if len(own["row_ids"]):
                expected = whole["sum"][torch.isin(whole["row_ids"], own["row_ids"])]
                torch.testing.assert_close(own["sum"], expected, rtol=1e-5, atol=1e-6)
    for result in ranks:
        for way in WAYS:
            _, whole, resumed, rate = result[way]
            assert rate == 0.1
            for one, other in zip(whole, resumed, strict=True):
                assert one.tobytes() == other.tobytes()
        assert "its rows are spread by columns" in result["column_wise"]
