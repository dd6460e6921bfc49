"""What the planner may choose from when the config says nothing, and what it makes of a GPU's memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recgrad.embedding.build import TableOptimizer
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.errors import ConfigError
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS

pytest.importorskip("torchrec", exc_type=(ImportError, OSError))

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


def plan_for_gpus(gpu_bytes: int) -> str:
    """The plan, or what is wrong, for tables of all kernels beside GPUs of this size; none is touched."""
    from recgrad.embedding.sharded import quiet
    from recgrad.embedding.sharded.choice import choose_kernels
    from recgrad.embedding.sharded.plan import build_collections, describe_plan, plan_tables

    torch.cuda.get_device_properties = lambda device: SimpleNamespace(total_memory=gpu_bytes)  # type: ignore[assignment,return-value]
    kinds = {"a": "adagrad", "b": "adam", "c": "rowwise_adagrad", "d": "lion", "e": "sgd", "s": "sgd"}
    tables = [
        TableSpec("a", 1000, 8),
        TableSpec("b", 10**6, 16, compute_kernels=("fused_uvm_caching",)),
        TableSpec("c", LARGE, 16, compute_kernels=("fused_uvm",)),
        TableSpec("d", LARGE, 16),
        TableSpec("e", 100, 8, sharding_types=("data_parallel",)),
        TableSpec("s", 10**7, 8),
    ]
    optimizers = {}
    for name, short in kinds.items():
        kind = SPARSE_OPTIMIZERS[f"{short}_optimizer"]
        optimizers[name] = TableOptimizer(kind, dict(kind([{"params": []}]).param_groups[0]), short)
    choices = choose_kernels(tables, optimizers, devices=["cuda"])
    specs = {spec.name: spec for spec in tables}
    pooled, single = {name: [name] for name in "abcde"}, {"s": ["s"]}
    try:
        with quiet():
            collections = build_collections(specs, pooled, single, choices=choices, weighted=True)
            gpu = torch.device("cuda", 0)
            plan = plan_tables(collections, specs, choices, batch_size=64, local_world_size=1, device=gpu)
    except ConfigError as error:
        return str(error)
    return describe_plan(plan, specs, choices)


def test_gpus_hold_what_they_have_room_for(run_ranks: Any) -> None:
    said = run_ranks(2, plan_for_gpus, 40 << 30)
    assert said[0] == said[1]
    found = {line.split()[0]: line.split()[4] for line in said[0].splitlines()[1:]}
    kernels = ("fused", "fused_uvm_caching", "fused_uvm", "recgrad", "recgrad", "fused")
    assert found == dict(zip("abcdes", kernels))


def test_gpus_without_room_are_told_of_host_memory(run_ranks: Any) -> None:
    said = run_ranks(2, plan_for_gpus, 1 << 20)
    assert said[0] == said[1]  # rank 0 alone plans, and no other waits for a plan that does not come
    assert said[0].startswith("embedding_constraints: the tables cannot be spread over 2 processes as asked")
    assert said[0].endswith("or compute_kernels with rows in host memory (fused_uvm, customized_kernel)")
