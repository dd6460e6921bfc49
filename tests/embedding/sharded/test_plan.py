"""What the planner may choose from when the config says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from recgrad.embedding.spec import LookupSpec, TableSpec

pytest.importorskip("torchrec")

LARGE = 10**9


def plan_of_mixed_tables() -> dict[str, str]:
    """The sharding by table, of tables of all kinds."""
    from recgrad.embedding.sharded.engine import ShardedEngine

    tables = [
        TableSpec("small", 10, 16),
        TableSpec("medium", 1_000_000, 16),
        TableSpec("large", LARGE, 16),
        TableSpec("asked", 10, 16, sharding_types=("row_wise",)),
    ]
    lookups = [LookupSpec(spec.name, spec.name, spec.name) for spec in tables]
    engine = ShardedEngine(tables, lookups, keys=[spec.name for spec in tables], batch_size=8192)
    lines = engine.plan_text.splitlines()[1:]
    return {line.split()[0]: line.split()[3] for line in lines}


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "large"), [(1, "table_wise"), (2, "row_wise")])
def test_small_tables_stay_whole_and_large_ones_are_spread(run_ranks: Any, ranks: int, large: str) -> None:
    plans = run_ranks(ranks, plan_of_mixed_tables)
    expected = {"small": "table_wise", "medium": "table_wise", "large": large, "asked": "row_wise"}
    assert plans == [expected] * ranks
