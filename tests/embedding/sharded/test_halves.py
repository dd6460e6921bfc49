"""Half precision between ranks: vectors as FP16, gradients of any size as BF16, whoever carries them."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from recgrad.embedding.local.engine import Ids
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS

pytest.importorskip("torchrec", exc_type=(ImportError, OSError))

ROWS = 40
TINY = 1e-7  # a gradient that FP16 would round to zero or to very few digits


def learn(kind: str, half: bool) -> tuple[Any, Any, Any]:
    """Vectors before an update, rows that this rank holds after it, and the types that were exchanged."""
    import torch.distributed as dist

    from recgrad.embedding.sharded.engine import ShardedEngine

    rank = dist.get_rank()
    tables = [TableSpec(name, 50, 8, sharding_types=(kind,)) for name in ("user", "tags", "item")]
    lookups = [
        LookupSpec("user", "user", "user"),
        LookupSpec("tags", "tags", "tags"),
        LookupSpec("clicks", "clicks", "item", sequence=True),
    ]
    engine = ShardedEngine(
        tables, lookups, keys=("user", "tags"), sequence_keys=("clicks",), seed=7, half=half
    )
    optimizer = SPARSE_OPTIMIZERS["sgd_optimizer"](engine, lr=0.1 / TINY)
    rng = np.random.default_rng(rank)
    ids = torch.tensor(rng.integers(0, 50, 3 * ROWS))
    ones = torch.ones(3 * ROWS, dtype=torch.int32)
    kinds = set()
    real = dist.all_to_all_single

    def noted(*args: Any, **kwargs: Any) -> Any:
        kinds.add(kwargs["input"].dtype)
        return real(*args, **kwargs)

    with mock.patch.object(dist, "all_to_all_single", noted):
        embedded = engine(
            Ids(ids[: 2 * ROWS], ones[: 2 * ROWS], (ROWS, ROWS), single=True),
            Ids(ids[2 * ROWS :], ones[2 * ROWS :], (ROWS,), single=True),
        )
        found = torch.cat([embedded.pooled(["tags", "user"]), embedded.sequence("clicks")], dim=1)
        noise = torch.tensor(rng.normal(size=found.shape), dtype=torch.float32)
        (found * noise * TINY).sum().backward()
        optimizer.step()
    parts = {
        name: [(p.first_column, p.row_ids, p.weights) for p in table.parts()]
        for name, table in engine.tables.items()
    }
    return found.detach().numpy(), parts, sorted(map(str, kinds))


@pytest.mark.parametrize("kind", ["table_wise", "row_wise"])
def test_vectors_and_tiny_gradients_arrive_with_the_digits_of_halves(run_ranks: Any, kind: str) -> None:
    full, half = (run_ranks(2, learn, kind, on) for on in (False, True))
    for (vectors, rows, kinds), (rounded, other_rows, other_kinds) in zip(full, half):
        assert "torch.float16" not in kinds
        assert "torch.float16" in other_kinds
        assert "torch.float32" not in other_kinds
        np.testing.assert_array_equal(rounded, vectors.astype(np.float16).astype(np.float32))
        for name, parts in rows.items():
            for (_, numbers, weights), (_, other_numbers, others) in zip(
                parts, other_rows[name], strict=True
            ):
                np.testing.assert_array_equal(other_numbers, numbers)
                # An update is a sum of gradients of up to 0.1 · 4, each with 8 digits of two.
                np.testing.assert_allclose(others, weights, rtol=0, atol=4 * 0.4 * 2**-8)
                assert not np.array_equal(others, weights)


LARGEST = {torch.float16: 65504.0, torch.bfloat16: 2.0**127 * (2 - 2**-7)}
WITHIN = (0.0, 1.5, -(2.0**-14))
BEYOND = (1e5, -1e5, 3.4e38, -3.4e38)
NOT_FINITE = (math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "values",
    [(), WITHIN, WITHIN + BEYOND, *((*WITHIN, one) for one in NOT_FINITE), WITHIN + BEYOND + NOT_FINITE],
)
def test_values_beyond_the_range_are_clamped_and_infinities_and_nan_pass(
    dtype: torch.dtype, values: tuple[float, ...]
) -> None:
    from recgrad.embedding.sharded.halves import Halves

    halves, given, largest = Halves(dtype), torch.tensor(values), LARGEST[dtype]
    sent = halves.encode(given)
    assert sent.dtype == torch.float16
    expected = [value if math.isinf(value) else min(max(value, -largest), largest) for value in values]
    expected = [math.nan if math.isnan(value) else one for value, one in zip(values, expected, strict=True)]
    rounded = torch.tensor(expected).to(dtype).float()
    torch.testing.assert_close(halves.decode(sent), rounded, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(given, torch.tensor(values), rtol=0, atol=0, equal_nan=True)
