"""FBGEMM's fused kernels as TorchRec's compute kernel, with the update put off until the optimizer steps.

FBGEMM updates rows inside backward. Here its backward runs when the optimizer steps: gradients of outputs
are kept as the local engine keeps them, so that accumulation, clipping, loss scaling, schedules and skipped
updates mean the same for these tables as for all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
    BoundsCheckMode,
    EmbeddingLocation,
    PoolingMode,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
    WeightDecayMode,
)
from torch import Tensor, nn
from torchrec.distributed.embedding_kernel import BaseEmbedding
from torchrec.distributed.embedding_types import GroupedEmbeddingConfig
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recgrad.embedding.engine import TableEngine
from recgrad.embedding.sharded.choice import FUSED, FUSED_UVM, FUSED_UVM_CACHING, KernelChoice
from recgrad.embedding.sharded.fbgemm import RULES, decay_mode, fused_arguments
from recgrad.embedding.sharded.fused_table import CHANGED, FusedTable
from recgrad.embedding.sharded.kept import (
    Bags,
    Kept,
    Layout,
    bags_of_rows,
    clamped,
    pieces,
    rows_of,
    scale,
    sum_by_row,
)
from recgrad.embedding.sharded.table import shard_spec, table_name
from recgrad.embedding.spec import TableSpec
from recgrad.optim.sparse import SGD
from recgrad.optim.sparse.tables import Update

_LOCATIONS = {
    FUSED: EmbeddingLocation.DEVICE,
    FUSED_UVM: EmbeddingLocation.MANAGED,
    FUSED_UVM_CACHING: EmbeddingLocation.MANAGED_CACHING,
}
Settings = tuple[int, dict[str, float]]  # the number of an update, and hyperparameters by FBGEMM's names


class FusedEngine(TableEngine):
    """The shards of one FBGEMM module, all of one optimizer, and the gradients that wait for them.

    Args:
        specs: the shards.
        choices: for each shard, what its table gets.
        features: for each shard, how many features look it up.
        seed: of the initial values.
        sequence: give a vector for each id instead of a sum for each bag.
        device: where to look up.
    """

    tables: Mapping[str, FusedTable]

    def __init__(
        self,
        specs: Sequence[TableSpec],
        choices: Sequence[KernelChoice],
        features: Sequence[int],
        seed: int,
        *,
        sequence: bool,
        device: torch.device,
    ) -> None:
        optimizer = choices[0].optimizer
        self.trainable = optimizer is not None
        self._kind = SGD if optimizer is None else optimizer.kind
        self._rule = RULES[self._kind]
        self._settings: Mapping[str, Any] = (
            {"lr": 0.0, "weight_decay": 0.0} if optimizer is None else optimizer.settings
        )
        self._decay_mode = decay_mode(self._settings)
        owner = [i for i, count in enumerate(features) for _ in range(count)]
        self.layout = Layout(
            tuple(specs[i].name for i in owner), tuple(specs[i].dim for i in owner), sequence
        )
        self._module = SplitTableBatchedEmbeddingBagsCodegen(
            [
                (spec.num_rows, spec.dim, *_place(choice.kernel, device))
                for spec, choice in zip(specs, choices)
            ],
            feature_table_map=owner,
            optimizer=getattr(EmbOptimType, self._rule.optim_type),
            weight_decay_mode=getattr(WeightDecayMode, self._decay_mode),
            pooling_mode=PoolingMode.NONE if sequence else PoolingMode.SUM,
            bounds_check_mode=BoundsCheckMode.NONE,  # ids were checked before they were sent
            device=device,
        )
        starts = [0, *accumulate(spec.num_rows for spec in specs)]
        self._marks = torch.zeros(starts[-1], dtype=torch.uint8, device=device)
        self._starts = torch.tensor([starts[i] for i in owner], device=device)
        self.tables = self._tables(specs, seed, starts)
        self._anchor = torch.empty(0, requires_grad=True)  # makes outputs part of the autograd graph
        self._forwards = 0
        self._step = 1  # of the next update, as far as one knows
        self._kept: list[Kept] = []
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}

    def _tables(self, specs: Sequence[TableSpec], seed: int, starts: Sequence[int]) -> dict[str, FusedTable]:
        weights = self._module.split_embedding_weights()
        names = [state.name for state in self._kind.states]
        states = self._module.split_optimizer_states() if names else [[] for _ in specs]
        return {
            spec.name: FusedTable(
                spec,
                self,
                seed,
                weights[i],
                {name: state.view(spec.num_rows, -1) for name, state in zip(names, states[i])},
                self._marks[starts[i] : starts[i + 1]],
                self._module.flush,
                self._module.reset_cache_states,
            )
            for i, spec in enumerate(specs)
        }

    # --- forward and backward ---

    def __call__(self, bags: Bags) -> Tensor:
        """[bags, sum of dims], or a vector for each id."""
        if not len(bags.ids):
            count = 0 if self.layout.sequence else len(bags.lengths) // len(self.layout.tables)
            width = self.layout.dims[0] if self.layout.sequence else sum(self.layout.dims)
            return torch.zeros(count, width, device=bags.ids.device)
        if not (self.trainable and torch.is_grad_enabled()):
            # FBGEMM's lookups are functions of autograd, which inference mode would leave out.
            with torch.inference_mode(False), torch.no_grad():
                output: Tensor = self._module(bags.ids, bags.offsets, bags.weights)
            self._forwards += 1
            return output
        # The group's rates are those of the next update already: backward may be run as it is then.
        settings = (self._step, fused_arguments(self._rule, self._settings))
        output, made_with = self._lookup(bags, settings)
        kept = Kept(bags, output, set(self.tables), output, made_with)
        taken: Tensor = _Keep.apply(self._anchor, self._kept, kept)  # type: ignore[no-untyped-call]
        return taken

    def _lookup(self, bags: Bags, settings: Settings) -> tuple[Tensor, object]:
        """FBGEMM's output, whose backward will make the update with these settings.

        FBGEMM takes the settings at the lookup, and so it does the places of rows in its cache, which
        another lookup may move.
        """
        step, arguments = settings
        self._module.update_hyper_parameters(arguments)
        for counter in (self._module.iter, self._module.iter_cpu):
            counter.fill_(step - 1)  # the lookup counts on
        self._forwards += 1
        with torch.enable_grad():
            output: Tensor = self._module(bags.ids, bags.offsets, bags.weights)
        return output, (self._forwards, *settings)

    # --- what optimizers ask for ---

    def pending_tables(self) -> set[str]:
        """The shards that have gradients waiting."""
        return {name for kept in self._kept for name in kept.tables} | set(self._sums)

    def clear_gradients(self, names: set[str] | None = None) -> None:
        """Drop the waiting gradients, of all shards or of some."""
        dropped = set(self.tables) if names is None else names
        for kept in self._kept:
            kept.tables -= dropped
        self._kept[:] = [kept for kept in self._kept if kept.tables]
        self._sums = {name: sums for name, sums in self._sums.items() if name not in dropped}

    def scale_gradients(self, names: set[str], factor: float) -> None:
        """Multiply the waiting gradients of some shards."""
        for kept in self._kept:
            scale(kept, self.layout, names, factor)
        for name in names & self._sums.keys():
            self._sums[name][1].mul_(factor)

    def finite_gradients(self, names: set[str]) -> bool:
        """Whether the waiting gradients of some shards are free of infinities and NaN."""
        found = [piece for kept in self._kept for _, piece in pieces(kept, self.layout, names)]
        found += [self._sums[name][1] for name in names & self._sums.keys()]
        return all(bool(gradient.isfinite().all()) for gradient in found)

    def summed_gradients(self, limits: dict[str, float], *, own: bool = False) -> list[Tensor]:
        """Replace the waiting gradients of some shards by their sums per row.

        Args:
            limits: by shard, the largest element that an output's gradient may have before it is summed.
            own: leave out what another rank has too; there is nothing of the kind.
        """
        for name, limit in limits.items():
            found = [part for kept in self._kept for part in rows_of(kept, self.layout, name, limit)]
            found += [self._sums[name]] if name in self._sums else []
            if found:
                self._sums[name] = sum_by_row(found)
        for kept in self._kept:
            kept.tables -= limits.keys()
        self._kept[:] = [kept for kept in self._kept if kept.tables]
        return [self._sums[name][1] for name in limits if name in self._sums]

    def update(self, updates: Sequence[Update]) -> None:
        """Let FBGEMM update all rows with gradients, once, and drop the gradients."""
        together: dict[Any, list[Update]] = {}
        for update in updates:
            mode = decay_mode(update.settings)
            if (update.rule, mode) != (self._kind.rule, self._decay_mode):
                raise ValueError(
                    f"table '{update.table}' has FBGEMM's kernels for {self._kind.__name__} with "
                    f"weight_decay_mode {self._decay_mode}, and another optimizer was to update it"
                )
            arguments = fused_arguments(self._rule, update.settings)
            key = (update.step, update.limit, tuple(arguments.items()))
            together.setdefault(key, []).append(update)
            self._settings, self._step = update.settings, update.step + 1
        for (step, limit, items), members in together.items():
            self._update({update.table for update in members}, limit, (step, dict(items)))

    def _update(self, names: set[str], limit: float, settings: Settings) -> None:
        whole = len(self._kept) == 1 and not self._sums and self._kept[0].tables == names == set(self.tables)
        if whole:
            (kept,) = self._kept
            bags, gradient, output = kept.bags, clamped(kept.gradient, limit), kept.output
            as_made = kept.made_with == (self._forwards, *settings)
        else:
            self.summed_gradients(dict.fromkeys(sorted(names), limit))
            sums = {name: self._sums[name] for name in sorted(names & self._sums.keys())}
            if not sums:
                return
            bags, gradient = bags_of_rows(sums, self.layout)
            as_made = False
        if not as_made:
            output, _ = self._lookup(bags, settings)
        counts = bags.lengths.view(len(self.layout.tables), -1).sum(1)
        self._keep_copied(bags, counts)
        torch.autograd.backward(output, gradient.contiguous())
        starts = self._starts.repeat_interleave(counts, output_size=len(bags.ids))
        self._marks[bags.ids + starts] = CHANGED
        self.clear_gradients(names)

    def _keep_copied(self, bags: Bags, counts: Tensor) -> None:
        """Let tables that a checkpoint is copying put aside the rows that are about to change."""
        if all(table.copying is None for table in self.tables.values()):
            return
        for name, ids in zip(self.layout.tables, bags.ids.split_with_sizes(counts.tolist())):
            copying = self.tables[name].copying
            if copying is not None:
                copying.keep(np.unique(ids.numpy()))


class _Keep(torch.autograd.Function):
    """Hands out an output; its backward keeps the gradient instead of passing it to FBGEMM."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, waiting: list[Kept], kept: Kept) -> Tensor:
        ctx.kept = (waiting, kept)
        return kept.output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        waiting, kept = ctx.kept
        waiting.append(replace(kept, gradient=gradients[0], tables=set(kept.tables)))
        return None, None, None


class FusedKernel(BaseEmbedding):  # type: ignore[misc]
    """Looks up the ids that TorchRec sends to this rank, in shards that FBGEMM keeps.

    Args:
        config: TorchRec's group of shards, all of one optimizer.
        specs: the whole tables by name.
        choices: what each table gets, by its name.
        seed: of the initial values.
        sequence: give a vector for each id instead of a sum for each bag.
        device: where to look up.
    """

    replicated = False  # copies have our own kernels

    def __init__(
        self,
        config: GroupedEmbeddingConfig,
        specs: Mapping[str, TableSpec],
        choices: Mapping[str, KernelChoice],
        seed: int,
        *,
        sequence: bool,
        device: torch.device,
    ) -> None:
        super().__init__()
        self._config = config
        self.engine = FusedEngine(
            [shard_spec(table, i, specs) for i, table in enumerate(config.embedding_tables)],
            [choices[table_name(table.name)] for table in config.embedding_tables],
            [len(table.feature_names) for table in config.embedding_tables],
            seed,
            sequence=sequence,
            device=device,
        )

    @property
    def config(self) -> GroupedEmbeddingConfig:
        """TorchRec's group of shards."""
        return self._config

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """[bags, sum of dims], or the vectors of all ids one after another."""
        values = features.values().to(torch.int64)
        output = self.engine(Bags(values, features.lengths(), features.weights_or_none()))
        if torch.is_grad_enabled() and not output.requires_grad:
            # Backward is a collective: it must run on every rank, also where nothing is to be learned.
            output = output.detach().requires_grad_()
        return output

    def named_parameters_by_table(self) -> Iterator[tuple[str, nn.Parameter]]:
        """None: tables are no module parameters."""
        return iter(())

    def flush(self) -> None:
        """Checkpoints flush by themselves."""

    def purge(self) -> None:
        """Nothing is cached beside FBGEMM's own."""


def _place(kernel: str, device: torch.device) -> tuple[Any, Any]:
    """Where FBGEMM keeps a table, and what computes."""
    if device.type == "cpu":
        return EmbeddingLocation.HOST, ComputeDevice.CPU
    return _LOCATIONS[kernel], ComputeDevice.CUDA
