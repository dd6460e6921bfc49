"""Which rank holds what of which table: TorchRec's planner under the config's constraints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    HardwareConfig,
    KernelConfig,
    ParameterConstraints,
    PlannerError,
    TopologyFactory,
    TrainerConfig,
)
from torchrec.distributed.types import ShardingPlan, ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from recgrad.embedding.sharded.choice import FUSED_UVM, OWN, KernelChoice
from recgrad.embedding.sharded.halves import codecs
from recgrad.embedding.sharded.kernel import KERNEL, PooledSharder, SequenceSharder
from recgrad.embedding.sharded.table import module_name, table_name
from recgrad.embedding.spec import TableSpec
from recgrad.errors import ConfigError

POOLED = "pooled"
UNLIMITED_BYTES = 1 << 60
MIN_COLUMNS = 4
SMALL_TABLE_BYTES = 1 << 30
GPU_RESERVED = 0.2  # of a GPU's memory, for all that is no table
GROUP = "recgrad_group"
"""Of a table's fused_params: tables with the same share one module of FBGEMM."""
SHARDERS: tuple[Any, ...] = (PooledSharder(), SequenceSharder())
HALVING_SHARDERS: tuple[Any, ...] = tuple(
    kind(qcomm_codecs_registry=codecs()) for kind in (PooledSharder, SequenceSharder)
)
"""What makes collections whose vectors and gradients travel in half precision."""


def build_collections(
    specs: Mapping[str, TableSpec],
    pooled: Mapping[str, Sequence[str]],
    sequence: Mapping[str, Sequence[str]],
    *,
    choices: Mapping[str, KernelChoice],
    weighted: bool,
) -> nn.ModuleDict:
    """TorchRec's collections over these tables, without memory: feature names by table.

    Args:
        specs: all tables by name.
        pooled: the features of each table whose bags are summed where the table lies.
        sequence: the features of each table whose ids are wanted one by one.
        choices: the kernel and optimizer of each table.
        weighted: ids of bags come with weights.
    """
    nowhere = torch.device("meta")
    modules: dict[str, nn.Module] = {}
    if pooled:
        bags = [EmbeddingBagConfig(**_config(specs[name], features)) for name, features in pooled.items()]
        modules[POOLED] = EmbeddingBagCollection(tables=bags, is_weighted=weighted, device=nowhere)
    for dim in dict.fromkeys(specs[name].dim for name in sequence):  # TorchRec wants one width
        own = {name: features for name, features in sequence.items() if specs[name].dim == dim}
        rows = [EmbeddingConfig(**_config(specs[name], features)) for name, features in own.items()]
        modules[single_vectors(dim)] = EmbeddingCollection(tables=rows, device=nowhere)
    collections = nn.ModuleDict(modules)
    for path, parameter in collections.named_parameters():
        spec = specs[table_name(path.split(".")[-2])]
        if choices[spec.name].fused:
            # TorchRec makes one kernel of tables whose optimizers have the same settings.
            marked: Any = parameter
            marked._optimizer_kwargs = [{GROUP: _group(choices[spec.name])}]
    return collections


def _group(choice: KernelChoice) -> str:
    """Tables of the same group can lie in one module of FBGEMM: they have one optimizer."""
    return "frozen" if choice.optimizer is None else f"group {choice.optimizer.group}"


def single_vectors(dim: int) -> str:
    """The name of the collection that hands out single vectors of this width."""
    return f"vectors_{dim}"


def _config(spec: TableSpec, features: Sequence[str]) -> dict[str, Any]:
    return {
        "name": module_name(spec.name),
        "num_embeddings": spec.capacity,
        "embedding_dim": spec.dim,
        "feature_names": list(features),
    }


def plan_tables(
    collections: nn.ModuleDict,
    specs: Mapping[str, TableSpec],
    choices: Mapping[str, KernelChoice],
    *,
    batch_size: int,
    local_world_size: int,
    device: torch.device,
) -> ShardingPlan:
    """The planner's choice, the same on every rank.

    Host memory does not limit it: rows take room when they are first updated, so nothing is known
    of it beforehand. A GPU's does.
    """
    world_size = dist.get_world_size()
    on_gpu = device.type == "cuda"
    topology = TopologyFactory.create_topology(
        TrainerConfig(world_size=world_size, local_world_size=local_world_size),
        HardwareConfig(
            ddr_cap_bytes=UNLIMITED_BYTES,
            hbm_cap_bytes=torch.cuda.get_device_properties(device).total_memory if on_gpu else None,
        ),
        KernelConfig(compute_device=device.type),
    )
    summed = set() if POOLED not in collections else {c.name for c in _bag_configs(collections)}
    constraints = {
        module_name(name): _constraints(spec, choices[name], world_size, module_name(name) in summed, on_gpu)
        for name, spec in specs.items()
    }
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size,
        constraints=constraints,
        storage_reservation=FixedPercentageStorageReservation(GPU_RESERVED if on_gpu else 0.0),
        stats=[],
    )
    planned = _plan_of_main(planner, collections)
    if isinstance(planned, str):
        raise ConfigError(
            f"embedding_constraints: the tables cannot be spread over {world_size} processes as asked "
            f"({planned}); allow more sharding_types"
            + (f", or compute_kernels with rows in host memory ({FUSED_UVM}, {OWN})" if on_gpu else "")
        )
    for parameters in planned.plan.values():
        for sharding in parameters.values():
            sharding.compute_kernel = KERNEL
    return planned


def _plan_of_main(planner: EmbeddingShardingPlanner, collections: nn.ModuleDict) -> ShardingPlan | str:
    """The plan of rank 0, or why it has none, on all ranks.

    The planner's own `collective_plan` tells the others nothing where rank 0 finds no plan, and they
    would wait for it until the timeout.
    """
    made: list[ShardingPlan | str] = [""]
    if dist.get_rank() == 0:
        try:
            made = [planner.plan(collections, list(SHARDERS))]
        except (PlannerError, RuntimeError) as error:
            made = [str(error).partition("\n")[0]]
    dist.broadcast_object_list(made, src=0)
    return made[0]


def _bag_configs(collections: nn.ModuleDict) -> list[EmbeddingBagConfig]:
    pooled: Any = collections[POOLED]
    configs: list[EmbeddingBagConfig] = pooled.embedding_bag_configs()
    return configs


def _constraints(
    spec: TableSpec, choice: KernelChoice, world_size: int, summed: bool, on_gpu: bool
) -> ParameterConstraints:
    """What the config allows; by default what the planner may weigh against each other."""
    allowed = list(choice.sharding_types) or _default_types(spec, world_size, summed)
    columns = max(MIN_COLUMNS, -(-spec.dim // world_size // MIN_COLUMNS) * MIN_COLUMNS)
    while choice.fused and columns < spec.dim and spec.dim % columns:
        columns += MIN_COLUMNS  # FBGEMM's single vectors are all of one width
    # Beside a GPU, the planner takes our own tables for rows in host memory; it knows copies as dense ones.
    kernels = [choice.kernel] if choice.fused else [FUSED_UVM, EmbeddingComputeKernel.DENSE.value]
    return ParameterConstraints(
        sharding_types=allowed,
        compute_kernels=kernels if on_gpu else None,
        min_partition=min(columns, spec.dim),
    )


def _default_types(spec: TableSpec, world_size: int, summed: bool) -> list[str]:
    """Whole tables where a rank has room for them, if bags are summed where the rows lie.

    Row-wise, every rank has a part of every bag and sends it: with W ranks, W times the bytes of
    whole tables, whose holder alone sends. The planner does not see that on CPUs and would spread even
    tables of ten rows. Measured with two ranks (DeepFM of benchmarks/distributed.py, 52 tables, batch
    8192): ids, lookup and vectors of a step took 66 ms with whole tables and 141 ms row-wise, and a rank
    sent 20 MB instead of 37. Vectors that are wanted one by one come from the one rank that has
    them, so row-wise sends no more there.
    """
    if spec.living is not None:  # rounds look at all ids of a table
        return [ShardingType.TABLE_WISE.value]
    if world_size == 1 or (summed and 4 * spec.num_rows * spec.dim <= SMALL_TABLE_BYTES):
        return [ShardingType.TABLE_WISE.value]
    return [ShardingType.TABLE_WISE.value, ShardingType.ROW_WISE.value]


def describe_plan(
    plan: ShardingPlan, specs: Mapping[str, TableSpec], choices: Mapping[str, KernelChoice]
) -> str:
    """The plan as a table: what lies where, and whose kernels look it up."""
    lines = [("table", "rows", "dim", "sharding", "kernel", "ranks")]
    for parameters in plan.plan.values():
        for module, sharding in sorted(parameters.items()):
            spec = specs[table_name(module)]
            size = f"{spec.capacity:,}", str(spec.dim)
            choice = choices[spec.name]
            kernel = choice.kernel if choice.fused else "recgrad"
            lines.append((spec.name, *size, sharding.sharding_type, kernel, _ranks(sharding)))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    aligned = ("<", ">", ">", "<", "<", "<")
    rows = ([f"{cell:{a}{w}}" for cell, a, w in zip(line, aligned, widths)] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in rows)


def _ranks(sharding: Any) -> str:
    if sharding.sharding_type == ShardingType.DATA_PARALLEL.value:
        return "all"
    ranks = list(dict.fromkeys(sharding.ranks))
    if len(ranks) > 4 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} … {ranks[-1]}"
    return ", ".join(map(str, ranks))
