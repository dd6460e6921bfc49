"""The base class of models, also of one's own.

```
Batch ─▶ engine ─▶ groups.gather ─▶ Parts ─▶ ╔ groups ─▶ variational dropout ─▶ Inputs ─▶ predict ╗
         sparse half                         ╚ dense half: `compile` compiles this part           ╝
                                                                        {"logits": …} ◀───────────┘
```
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from recgrad.data.batch import Batch
from recgrad.data.features.spec import FeatureSpec
from recgrad.embedding.engine import EmbeddingEngine, EngineMaker
from recgrad.errors import ConfigError
from recgrad.kernels.compile import Wanted
from recgrad.models.batch_ids import PreparedBatch
from recgrad.models.feature_groups import FeatureGroups
from recgrad.models.group_needs import GroupNeeds
from recgrad.models.group_plan import FeatureGroup
from recgrad.models.inputs import Inputs, Parts
from recgrad.models.tasks import TaskSpec
from recgrad.nn import distinct_kernels, layer_products, mix_kernels, output_kernels, relu_kernels
from recgrad.nn.mlp import MLP
from recgrad.nn.moe import Experts, ExtractionLayer, MMoE
from recgrad.nn.output_layer import OutputLayer
from recgrad.nn.relu_layers import own_products
from recgrad.nn.variational_dropout import VariationalDropout
from recgrad.optim.sparse import SparseOptimizer
from recgrad.registry import Registry

logger = logging.getLogger(__name__)

DenseHalf = Callable[[Parts], dict[str, Tensor]]


class Model(nn.Module):
    """A model over feature groups. One's own overrides two methods:

    - `build(**params)` makes layers; `self.groups` tells the widths of the inputs
      (`dim("deep")`, `widths("deep")`, `sequence_dim("clicks")`, …) and `self.tasks` what to predict.
    - `predict(inputs)` returns the logits, `{task.logits: [rows] or [rows, num_logits]}`;
      `self.head(…)` cuts them to shape. Inputs are on the model's device; tensors that it makes itself
      belong there too: buffers move along, others take `device=` from an input.

    `self.engine` holds the embedding tables; it is None when no group has ids. The same seed
    gives the same weights, whatever was drawn from torch's generator before; that generator is
    left as it was.

    Args:
        features: all features that batches carry, in their order.
        groups: feature groups.
        tasks: what to predict; one binary label by default.
        seed: of all weights, dense and sparse.
        wide_embedding_dim: width of the tables of WIDE groups.
        wide_init_fn: initialiser of those tables.
        variational_dropout: arguments of `VariationalDropout`, for every group of more than one field.
        compile: run the dense half under torch.compile; where no C++ compiler is found, a warning
            is logged once and it runs as it is.
        engine: makes the embedding engine from (tables, lookups, keys=, sequence_keys=, seed=);
            the local one if None.
        params: go to `build`.
    """

    retrieval: ClassVar[bool] = False
    """Whether it compares an item with others, see `TaskSpec.retrieval`."""

    learns_codes: ClassVar[bool] = False
    """Whether it learns codes of its rows instead of labels."""

    similarity: str = "INNER_PRODUCT"
    """How the vectors of two towers are compared; COSINE means that they are normalised."""
    lists: ClassVar[bool] = False
    """Whether a row has a list of candidates: labels and predictions are lists with a value for each."""

    needs_sampler: ClassVar[str | None] = None
    """What the sampler must draw, where only one kind will do: `positions`."""

    reads: ClassVar[GroupNeeds | None] = None
    """Groups that it finds by itself; None if its settings name them (`input: DeepInput`), or any will do."""

    averages_candidates: bool = False
    """Whether what a row has several of (candidates, positions) weighs the same on every rank."""

    uncompiled: ClassVar[tuple[str, ...]] = ()
    """Methods that torch.compile runs as they are, because they are not a function of tensors alone."""

    settings_method: ClassVar[str] = "build"
    """What takes the settings, and has their limits in its signature."""

    groups: FeatureGroups
    engine: EmbeddingEngine | None
    tasks: tuple[TaskSpec, ...]

    def __init__(
        self,
        features: Sequence[FeatureSpec],
        groups: Sequence[FeatureGroup],
        *,
        tasks: Sequence[TaskSpec] = (TaskSpec(),),
        seed: int = 0,
        wide_embedding_dim: int = 4,
        wide_init_fn: str | None = None,
        variational_dropout: Mapping[str, Any] | None = None,
        compile: bool = False,
        engine: EngineMaker | None = None,
        **params: Any,
    ) -> None:
        super().__init__()
        self.tasks = tuple(tasks)
        groups = self.planned(groups, features)
        self.use_pareto_loss_weight = False
        with seeded(seed):
            self.groups = FeatureGroups(
                groups, features, wide_embedding_dim=wide_embedding_dim, wide_init_fn=wide_init_fn
            )
            self.build(**params)
            self.variational = nn.ModuleDict(_variational(self.groups, variational_dropout))
        plan = self.groups.plan
        self.engine = None
        if plan.tables:
            self.engine = (engine or _local_engine)(
                plan.tables,
                plan.lookups,
                keys=self.groups.ids.keys,
                sequence_keys=self.groups.ids.sequence_keys,
                seed=seed,
            )
            self.groups.leave_room(self.engine)
        if compile:
            # Here and not by a decorator, which would load the compiler wherever the model is imported.
            for name in self.uncompiled:
                setattr(self, name, torch.compiler.disable(getattr(self, name)))  # type: ignore[no-untyped-call]
        self._dense_half = _compiled(self.dense_half) if compile else self.dense_half

    @property
    def predicts_lists(self) -> bool:
        """Whether predictions are lists: `lists`, unless the groups decide."""
        return self.lists

    @property
    def list_group(self) -> str | None:
        """The sequence group that has a prediction for each position, where predictions are lists."""
        return None

    @property
    def equal_lengths(self) -> Sequence[Sequence[str]]:
        """Sequence groups of which a row must have equally many positions; of each set the events first."""
        return ()

    @classmethod
    def needs(cls, settings: Mapping[str, Any]) -> GroupNeeds | None:
        """Groups that it finds by itself with these settings: `reads`."""
        return cls.reads

    @classmethod
    def tasks_of(cls, task: TaskSpec) -> tuple[TaskSpec, ...]:
        """What a model without towers predicts, from the losses and metrics of the config; one task here."""
        return (task,)

    def planned(
        self, groups: Sequence[FeatureGroup], features: Sequence[FeatureSpec]
    ) -> Sequence[FeatureGroup]:
        """The groups as they are planned."""
        return groups

    def build(self, *args: Any, **params: Any) -> None:
        """Make the layers."""
        raise NotImplementedError

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits of each task, from the groups' inputs."""
        raise NotImplementedError

    def forward(self, batch: Batch, ids: PreparedBatch | None = None) -> dict[str, Tensor]:
        """The logits of each task; with variational dropout also "regularization", to add to the loss.

        Args:
            batch: rows, on the host.
            ids: what `prepare` gave for the batch, if it was asked before.
        """
        prepared = None if ids is None else ids.ids
        return self._dense_half(self.groups.gather(batch, self.engine, ids=prepared))

    @property
    def tower_groups(self) -> dict[str, tuple[str, ...]]:
        """The feature groups of each tower that `embed` knows, such as {"user": …, "item": …}."""
        return {}

    def tower_features(self, tower: str) -> set[str]:
        """The features that a tower reads: those of its groups."""
        return {name for group in self.tower_groups[tower] for name in self.groups.features[group]}

    def embed(self, batch: Batch, tower: str) -> Tensor:
        """Vectors of one tower, [rows, dim], from a batch with the features of its groups alone.

        A model of several interests a user gives [rows, interests, dim], with zeros for those that a
        user has not; the largest of their similarities counts.
        """
        return self.tower_vectors(tower, self.groups.gather(batch, self.engine, self.tower_groups[tower]))

    def prepare(self, batch: Batch) -> PreparedBatch | None:
        """The ids of a batch, for `forward`, on their way; other ranks are not asked. None without ids."""
        return None if self.engine is None else self.groups.ids.prepare(batch, self.engine)

    def kernels(self, optimizer: SparseOptimizer | None) -> list[Wanted]:
        """What the first steps with an optimizer of the tables will need compiled, where that is known."""
        found = [] if self.engine is None else self.engine.kernels(optimizer)
        if self.groups.device.type != "cpu":
            return found
        # Where torch's products are fast, a batch whose ids repeat may be computed by products of our own.
        if self._has_relu(MLP, Experts) and (own_products() or self.engine is not None):
            found += layer_products.kernels()
            found += distinct_kernels.kernels() if self.engine is not None else []
        if self._has_relu(Experts) and not own_products():
            found += relu_kernels.kernels()
        if any(isinstance(block, MMoE | ExtractionLayer) for block in self.modules()):
            found += mix_kernels.kernels()
        if any(isinstance(block, OutputLayer) and block.out_features == 1 for block in self.modules()):
            found += output_kernels.kernels()
        return found

    def _has_relu(self, *kinds: type[nn.Module]) -> bool:
        """Whether a block of these kinds has layers with ReLU."""
        blocks = (block for block in self.modules() if isinstance(block, kinds))
        return any(type(module) is nn.ReLU for block in blocks for module in block.modules())

    def dense_half(self, parts: Parts) -> dict[str, Tensor]:
        """All that follows the embedding lookup: a function of tensors alone."""
        inputs, penalty = self.dropped(self.groups(parts))
        outputs = self.predict(inputs)
        return outputs if penalty is None else {**outputs, "regularization": penalty}

    def scores(self, parts: Parts) -> dict[str, Tensor]:
        """What prediction needs of `dense_half`: the logits of each row by itself."""
        return self.dense_half(parts)

    def tower_vectors(self, tower: str, parts: Parts) -> Tensor:
        """The vectors of a tower, [rows, dim] or [rows, interests, dim], from the parts of its groups.

        A function of tensors, so that the tower can be exported; `embed` follows from it.
        """
        raise NotImplementedError

    def dropped(self, inputs: Inputs) -> tuple[Inputs, Tensor | None]:
        """The inputs after variational dropout, and its penalty."""
        rows, penalty = dict(inputs.rows), None
        for group, dropout in self.variational.items():
            if group in rows:
                rows[group], own = dropout(rows[group])
                penalty = own if penalty is None else penalty + own
        return Inputs(rows, inputs.sequences, inputs.times), penalty

    def settle(self) -> None:
        """Bring up to date what follows from training: called before an evaluation and a checkpoint."""

    def own_losses(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Further terms of the loss that the model asks for, from its outputs, as the log names them."""
        return {}

    def row_losses(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Further terms of the loss as one value a row, [rows] each, by the names of the log.

        They are added up over the rows of all ranks, or averaged where rows have weights.
        """
        return {}

    def own_predictions(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Further columns of predictions, from the outputs of evaluation: [rows] or [rows, width] each."""
        return {}

    def head(self, logits: Tensor, task: TaskSpec | None = None) -> dict[str, Tensor]:
        """Logits [rows, num_logits] as the output of a task: [rows] where it has one logit."""
        task = task or self.tasks[0]
        return {task.logits: logits.squeeze(1) if task.num_logits == 1 else logits}

    def dense_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters with gradients outside the engine."""
        for name, parameter in self.named_parameters():
            if not name.startswith("engine.") and parameter.requires_grad:
                yield name, parameter

    def shared_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Dense parameters that all tasks use: those outside `self.towers`."""
        for name, parameter in self.dense_named_parameters():
            if not name.startswith("towers."):
                yield name, parameter

    def place(self, device: torch.device) -> None:
        """Move the dense half to a device; tables stay where their engine keeps them."""
        engine, self.engine = self.engine, None
        self.to(device)
        self.engine = engine

    def memory(self) -> dict[str, int]:
        """Bytes of "dense" weights and of "tables"; `engine.memory()` has them table by table."""
        dense = sum(p.numel() * p.element_size() for _, p in self.dense_named_parameters())
        tables = [] if self.engine is None else self.engine.memory()
        return {"dense": dense, "tables": sum(table.total_bytes for table in tables)}


MODELS: Registry[type[Model]] = Registry("model", "recgrad.models")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block with torch's generator at `seed`, and put the generator back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def only_group(model: Model) -> str:
    """The group of a model that takes one DEEP group, whatever its name."""
    groups = list(model.groups.plan.rows)
    if len(groups) != 1:
        raise ConfigError(
            f"model_config.feature_groups: {type(model).__name__} takes one DEEP group, got "
            f"{len(groups)} ({', '.join(groups)})"
        )
    return groups[0]


def _local_engine(*args: Any, **kwargs: Any) -> EmbeddingEngine:
    from recgrad.embedding.local.engine import LocalEngine

    return LocalEngine(*args, **kwargs)


def _variational(groups: FeatureGroups, settings: Mapping[str, Any] | None) -> dict[str, nn.Module]:
    if settings is None:
        return {}
    if summed := sorted(groups.plan.summed):
        raise ConfigError(
            f"model_config.variational_dropout: it drops features that stand side by side, and the group "
            f"'{summed[0]}' adds them (combine: SUM); remove one of the two"
        )
    fields = {group: list(groups.widths(group).values()) for group in groups.plan.rows}
    return {g: VariationalDropout(widths, **settings) for g, widths in fields.items() if len(widths) > 1}


def _compiled(function: DenseHalf) -> DenseHalf:
    """The function under torch.compile, or itself where this machine cannot compile C++."""
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler
    except ImportError:  # a torch that has them elsewhere says by itself what it misses
        return torch.compile(function)
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        logger.warning("model_config.compile: no C++ compiler found, the model runs uncompiled; install g++")
        return function
    return torch.compile(function)
