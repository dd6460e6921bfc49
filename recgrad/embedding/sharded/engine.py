"""The sharded engine: embedding tables spread over processes by TorchRec."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv, ShardingPlan, ShardingType

from recgrad.embedding.engine import EmbeddingEngine, EmbeddingTable, IdsLike, PreparedIds, check_specs
from recgrad.embedding.local.engine import LocalEngine, table_kernels
from recgrad.embedding.local.lookup import lookup_tasks
from recgrad.embedding.local.transfer import offsets_task
from recgrad.embedding.local.update import reduce_tasks
from recgrad.embedding.sharded import column_kernels, quiet
from recgrad.embedding.sharded.choice import OWN, KernelChoice
from recgrad.embedding.sharded.features import Embedded, FeatureMap, KeyedBags, map_features
from recgrad.embedding.sharded.fused import FusedKernel
from recgrad.embedding.sharded.ids import Exchange, bag_jagged, check_ids, ids_per_key, on_device, row_jagged
from recgrad.embedding.sharded.kernel import ShardKernel, shard_kernels
from recgrad.embedding.sharded.living import ShardedLivingTable
from recgrad.embedding.sharded.plan import (
    GROUP,
    HALVING_SHARDERS,
    POOLED,
    SHARDERS,
    build_collections,
    describe_plan,
    plan_tables,
    single_vectors,
)
from recgrad.embedding.sharded.replicas import average_gradients
from recgrad.embedding.sharded.table import Kernel, ShardedTable, place_of, table_name
from recgrad.embedding.sharded.whole_tables import BagExchange, HeldBags, WholeTables
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.kernels import numbering
from recgrad.kernels.compile import Wanted
from recgrad.optim.sparse import SparseOptimizer
from recgrad.optim.sparse.tables import Update


class ShardedEngine(EmbeddingEngine):
    """Embedding tables over all processes of torch.distributed's default group.

    TorchRec plans where tables lie, sends ids to the ranks that hold their rows, and vectors
    back; lookup and update are the local engine's kernels on each rank, or FBGEMM's. What it means is the
    same as for `LocalEngine`: gradients of the mean over all ranks' losses wait for the
    optimizer's `step()`, and untouched rows have the same values.

    Every method that trains is to be called on all ranks.

    Args:
        tables, lookups, keys, sequence_keys, seed: as for `LocalEngine`.
        weighted: ids of row features come with weights.
        batch_size: rows of a rank's batch, for the planner.
        local_world_size: processes of each machine, for the planner; all of them by default.
        choices: what each table gets (`choose_kernels`); our own kernels if None.
        device: where the model is, and FBGEMM's tables; ids are given on the CPU.
        group: what ids, vectors and gradients go by, of all ranks; the default group if None.
        half: vectors travel as FP16 and their gradients as BF16.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        lookups: Sequence[LookupSpec],
        *,
        keys: Sequence[str],
        sequence_keys: Sequence[str] = (),
        seed: int = 0,
        weighted: bool = False,
        batch_size: int = 1024,
        local_world_size: int | None = None,
        choices: Mapping[str, KernelChoice] | None = None,
        device: torch.device | None = None,
        group: dist.ProcessGroup | None = None,
        half: bool = False,
    ) -> None:
        super().__init__()
        self._group = group
        specs = {spec.name: spec for spec in tables}
        self.device = device = device or torch.device("cpu")
        choices = choices or {spec.name: KernelChoice(OWN, spec.sharding_types, None) for spec in tables}
        check_specs(tables, lookups, keys, sequence_keys)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.keys, self.sequence_keys = tuple(keys), tuple(sequence_keys)
        self.features: FeatureMap = map_features(
            specs, lookups, self.keys, self.sequence_keys, weighted=weighted
        )
        self.lookups = self.features.lookups
        # A mean is a sum with weights, so that it comes out right however a bag's rows are spread.
        weighted = weighted or any(self.features.bag_means)
        self._means = torch.tensor(self.features.bag_means) if weighted else None
        self._kernels: list[Kernel] = []

        place_of: dict[str, int] | None = None

        def make(config: Any, sequence: bool, replicated: bool) -> Kernel:
            if GROUP in (config.fused_params or {}):
                kernel: Kernel = FusedKernel(config, specs, choices, seed, sequence=sequence, device=device)
            else:
                places = None if sequence else place_of
                kernel = ShardKernel(
                    config, specs, seed, sequence=sequence, replicated=replicated, place_of=places
                )
            self._kernels.append(kernel)
            return kernel

        with quiet(), shard_kernels(make):
            collections = build_collections(
                specs, self.features.pooled, self.features.rows, choices=choices, weighted=weighted
            )
            plan = plan_tables(
                collections,
                specs,
                choices,
                batch_size=batch_size,
                local_world_size=local_world_size or self.world_size,
                device=device,
            )
            if self.world_size > 1 and not weighted and _all_whole(plan, choices, device):
                place_of = self.features.place_of_bags
            # In a tuple it is no submodule: TorchRec would put its own prefix before all that the model's
            # state_dict holds, and tables are no module parameters anyway.
            self._parallel = (_spread(collections, plan, device, group, half),)
        self.plan_text = describe_plan(plan, specs, choices)
        placed = [item for module in plan.plan.values() for item in module.items()]
        kinds = {table_name(module): sharding.sharding_type for module, sharding in placed}
        self.tables: dict[str, ShardedTable] = {
            name: self._table(spec, kinds[name]) for name, spec in specs.items()
        }
        # Row-wise shards add up bags by a reduce-scatter, which wants as many on every rank.
        self._even_bags = any(
            sharding.sharding_type == ShardingType.ROW_WISE.value
            for sharding in plan.plan.get(POOLED, {}).values()
        )
        pooled = [k for k in self._kernels if isinstance(k, ShardKernel) and not k.sequence]
        self._whole = None if place_of is None else WholeTables(pooled, self._key_tables(), group, half)
        self._trainable = frozenset(name for name, spec in specs.items() if spec.trainable)
        self._has_own = not all(choices[name].fused for name in specs)
        self._pending: set[str] = set()
        self._averaged = False

    def _key_tables(self) -> list[list[ShardedTable]]:
        """By key of bags, its tables; none where a table counts how often its ids were seen."""
        found: list[dict[str, ShardedTable]] = [{} for _ in self.keys]
        for name, place in self.features.place.items():
            if name not in self.features.from_rows:
                table = self.tables[self.lookups[name].table]
                found[place][table.name] = table
        return [
            [] if any(table.spec.living is not None for table in own.values()) else list(own.values())
            for own in found
        ]

    def _table(self, spec: TableSpec, sharding_type: str) -> ShardedTable:
        shards = [t for k in self._kernels for t in k.engine.tables.values() if _whole(t) == spec.name]
        kind = ShardedTable if spec.living is None else ShardedLivingTable
        return kind(
            spec,
            shards,
            sharding_type,
            self,
            divides_gradients=spec.name in self.features.divided,
            saves=self.rank == 0,
        )

    def train(self, mode: bool = True) -> ShardedEngine:
        """Whether ids are counted and may get rows, on this rank's shards too: they are no submodules."""
        super().train(mode)
        for kernel in getattr(self, "_kernels", ()):
            if isinstance(kernel.engine, LocalEngine):
                kernel.engine.train(mode)
        return self

    @property
    def sends_ahead(self) -> bool:
        """Whether there are other ranks, so that it pays to send ids before they are needed."""
        return self.world_size > 1

    def prepare(self, ids: IdsLike | None, sequences: IdsLike | None = None) -> Prepared:
        """Check the ids of a batch. Other ranks are not asked.

        Raises:
            DataError: an id is outside its table.
        """
        rows = ids.bag_counts[0] if ids is not None and ids.bag_counts else 0
        counts = [ids_per_key(part) for part in (ids, sequences) if part is not None]
        values = [part.values for part in (ids, sequences) if part is not None]
        known = self.features.limits(ids is not None, sequences is not None)
        all_values = values[0] if len(values) == 1 else torch.cat(values)
        all_counts = counts[0] if len(counts) == 1 else torch.cat(counts)
        check_ids(all_values, all_counts, *known)
        return Prepared(self, ids, sequences, rows, all_values, all_counts)

    def exchanges(self, prepared: Prepared) -> dict[str, Exchange | BagExchange]:
        """By TorchRec's collections, ids whose counts are under way; all ranks are to call it."""
        modules: Any = self._parallel[0].module
        jagged = {}
        found: dict[str, Exchange | BagExchange] = {}
        if self._whole is not None:
            assert prepared.ids is not None
            counts = prepared.counts[: len(self.keys)].numpy()
            found[POOLED] = BagExchange(self._whole, prepared.ids, counts)
        elif POOLED in modules:
            assert prepared.ids is not None
            bags = self._bags(prepared.rows)
            jagged[POOLED] = bag_jagged(prepared.ids, *self.features.bag_inputs, self._means, bags)
        for dim, inputs in self.features.row_inputs.items():
            jagged[single_vectors(dim)] = row_jagged(prepared.values, prepared.counts, *inputs)
        for name, own in jagged.items():
            found[name] = Exchange(modules[name], on_device(own, self.device))
        return found

    def kernels(self, optimizer: SparseOptimizer | None) -> list[Wanted]:
        """What the first steps with an optimizer will need compiled on any rank, in the order of need."""
        wanted = [] if self._whole is None else numbering.kernels()
        # Single ids get lengths on the way, too.
        wanted += [Wanted(offsets_task), Wanted(lookup_tasks)] if self._has_own else []
        wanted += [] if self._whole is None else column_kernels.kernels()
        if any(table.replicated and table.trainable for table in self.tables.values()):
            wanted.append(Wanted(reduce_tasks))  # copies get the mean of sums
        return wanted + (table_kernels(optimizer) if self._has_own else [])

    def expect_gradients(self) -> None:
        """Note that a backward pass may come: on every rank, because an update is one of all ranks."""
        if torch.is_grad_enabled():
            self._pending |= self._trainable

    def _bags(self, rows: int) -> int:
        if not self._even_bags:
            return rows
        most = torch.tensor([rows])
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self._group)
        return int(most)

    def table(self, name: str) -> ShardedTable:
        """A table by name."""
        super().table(name)
        return self.tables[name]

    def export_table(self, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Touched rows that this rank holds whole, and their weights; `parts` has column shards too."""
        return self.table(name).export()

    # --- what optimizers ask for ---

    def pending_tables(self) -> set[str]:
        """Names of the tables that have gradients waiting, the same on every rank."""
        return set(self._pending)

    def clear_gradients(self, names: set[str] | None = None) -> None:
        """Drop the waiting gradients, of all tables or of some."""
        self._complete_gradients()
        for kernel in self._kernels:
            kernel.engine.clear_gradients(_shards_of(kernel, names))
        self._pending -= set(self.tables) if names is None else names
        self._averaged = False

    def update(self, updates: Sequence[Update]) -> None:
        """Apply optimizers' rules to the waiting gradients of their tables, then drop these."""
        self._average({update.table: update.limit for update in updates})
        by_table = {update.table: update for update in updates}
        for kernel in self._kernels:
            shards = [shard for shard in kernel.engine.tables.values() if _whole(shard) in by_table]
            own = [by_table[_whole(shard)]._replace(table=shard.name) for shard in shards]
            kernel.engine.update(own)
        self.clear_gradients(set(by_table))

    def scale_gradients(self, names: set[str], factor: float) -> None:
        """Multiply the waiting gradients of some tables."""
        self._complete_gradients()
        for kernel in self._kernels:
            kernel.engine.scale_gradients(_shards_of(kernel, names), factor)

    def finite_gradients(self, names: set[str]) -> bool:
        """Whether this rank's waiting gradients of some tables are free of infinities and NaN."""
        self._complete_gradients()
        return all(kernel.engine.finite_gradients(_shards_of(kernel, names)) for kernel in self._kernels)

    def summed_gradients(self, limits: dict[str, float], *, own: bool = False) -> list[Tensor]:
        """Replace the waiting gradients of some tables by their sums per row.

        Args:
            limits: by table, the largest element that a gradient may have before it is summed.
            own: leave out the copies of data-parallel tables on all ranks but the first, so that
                over all ranks each row is there once.
        """
        self._average(limits)
        sums: list[Tensor] = []
        for kernel in self._kernels:
            names = {s.name: limits[_whole(s)] for s in kernel.engine.tables.values() if _whole(s) in limits}
            if kernel.replicated:
                names = dict.fromkeys(names, math.inf)  # clamped before the sums of several ranks were added
            found = kernel.engine.summed_gradients(names)
            sums += [] if own and kernel.replicated and self.rank else found
        return sums

    def _average(self, limits: dict[str, float]) -> None:
        """Make all gradients those of all ranks, those of data-parallel tables once an update."""
        self._complete_gradients()
        if self._averaged:
            return
        self._averaged = True
        for kernel in self._kernels:
            if kernel.replicated:
                assert isinstance(kernel.engine, LocalEngine)
                names = {s.name: limits.get(_whole(s), math.inf) for s in kernel.engine.tables.values()}
                average_gradients(kernel.engine, names, self._group)

    def _complete_gradients(self) -> None:
        """Wait for those that other ranks have sent in backward; until then no rank needs them."""
        if self._whole is not None:
            self._whole.complete_gradients()

    def extra_repr(self) -> str:
        """Tables and ranks in numbers."""
        return f"tables={len(self.tables)}, rank={self.rank} of {self.world_size}"


@dataclass
class Prepared(PreparedIds):
    """The checked ids of a batch, at home or under way.

    Attributes:
        engine: that they are for.
        ids, sequences: as given to the engine.
        rows: of the batch.
        values: of both, one after another.
        counts: ids of each key of both.
        exchanges: by collection; None while the ids are at home.
    """

    engine: ShardedEngine
    ids: IdsLike | None
    sequences: IdsLike | None
    rows: int
    values: Tensor
    counts: Tensor
    exchanges: Mapping[str, Exchange | BagExchange] | None = None

    def send(self) -> None:
        """Begin to send ids to the ranks that hold their rows; all ranks are to call it."""
        self.exchanges = self.engine.exchanges(self)
        for exchange in self.exchanges.values():
            exchange.send()

    def arrive(self) -> None:
        """Wait for what is under way."""
        for exchange in (self.exchanges or {}).values():
            exchange.arrive()

    def look_up(self) -> Embedded:
        """The embeddings, from all ranks."""
        self.engine.expect_gradients()
        if self.exchanges is None:
            self.send()
        assert self.exchanges is not None
        found: dict[str, Any] = {name: exchange.look_up() for name, exchange in self.exchanges.items()}
        features = self.engine.features
        vectors = {dim: found[single_vectors(dim)] for dim in features.row_inputs}
        bags = found.get(POOLED)
        if bags is not None and not isinstance(bags, HeldBags):
            bags = KeyedBags(bags, self.rows)
        return Embedded(features, self.rows, self.ids, self.sequences, bags, vectors)


def _spread(
    collections: nn.ModuleDict,
    plan: ShardingPlan,
    device: torch.device,
    group: dist.ProcessGroup | None,
    half: bool,
) -> DistributedModelParallel:
    """The collections with this rank's shards, as planned; tables hold no parameters that torch could set."""
    return DistributedModelParallel(
        collections,
        env=None if group is None else ShardingEnv.from_process_group(group),
        device=device,
        plan=plan,
        sharders=list(HALVING_SHARDERS if half else SHARDERS),
        init_data_parallel=False,
        init_parameters=False,
    )


def _all_whole(plan: ShardingPlan, choices: Mapping[str, KernelChoice], device: torch.device) -> bool:
    """Whether all tables whose bags are summed lie whole on a rank, with our kernels, the model on a CPU."""
    placed = plan.plan.get(POOLED, {})
    return (
        device.type == "cpu"
        and bool(placed)
        and all(sharding.sharding_type == ShardingType.TABLE_WISE.value for sharding in placed.values())
        and not any(choices[table_name(module)].fused for module in placed)
    )


def _whole(shard: EmbeddingTable) -> str:
    return place_of(shard).table


def _shards_of(kernel: Kernel, names: set[str] | None) -> set[str]:
    tables = kernel.engine.tables.values()
    return {shard.name for shard in tables if names is None or _whole(shard) in names}
