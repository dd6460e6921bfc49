"""Tasks: towers, the labels they learn, and the fields they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recgrad.check.node import Node
from recgrad.check.rule import CHECKS, Context
from recgrad.config.values import show
from recgrad.metrics.reconstruction import CODE_METRICS
from recgrad.models.build import FUSED, TOWERS, task_messages, task_name


@dataclass(frozen=True)
class Task:
    """What has losses and metrics: a tower, or the model itself.

    Attributes:
        node: the message that holds them.
        retrieval: the model scores an item against negatives, so that classes are items.
        codes: the model learns codes of its rows.
        metrics: of every evaluation, whatever the config says.
    """

    node: Node
    retrieval: bool = False
    codes: bool = False
    metrics: tuple[str, ...] = ()

    @property
    def num_class(self) -> int:
        """Classes of the label; 1 for one logit."""
        return int(self.node.message.num_class)


def towers(context: Context) -> list[Node]:
    """The towers of multi-task models."""
    return [
        Node(model.node.at(place), tower)
        for model in context.of_kind("model")
        for place, tower in task_messages(model.node.message) or ()
    ]


def tasks(context: Context) -> list[Task]:
    """The tasks of the model; none when the model is unknown."""
    found = [Task(node) for node in towers(context)]
    for model in context.of_kind("model"):
        if model.cls is not None and task_messages(model.node.message) is None:
            codes = model.trait("learns_codes", False)
            metrics = tuple(metric.config_name for metric in CODE_METRICS) if codes else ()
            found.append(Task(model.holder, model.trait("retrieval", False), codes, metrics))
    return found


@CHECKS.register("task towers")
def check_towers(context: Context) -> None:
    """Towers have names of their own, and learn labels that are read."""
    for model in context.of_kind("model"):
        if task_messages(model.node.message) is not None:
            _check_multi_task(context, model.holder, model.node)
    labels = list(context.config.data_config.label_fields)
    weights = list(context.config.data_config.sample_weight_fields)
    for node in towers(context):
        tower: Any = node.message
        _check_named(context, node, "label_name", "label", labels)
        if "task_space_indicator_label" in tower.DESCRIPTOR.fields_by_name:
            _check_named(context, node, "task_space_indicator_label", "label", labels)
        if "sample_weight_name" in tower.DESCRIPTOR.fields_by_name:
            _check_named(context, node, "sample_weight_name", "sample weight field", weights)
        for field in ("weight", "in_task_space_weight", "out_task_space_weight"):
            if field in tower.DESCRIPTOR.fields_by_name:
                context.ranged(node, field, 0)
        context.ranged(node, "num_class", 1)
    for node in context.of("ModelConfig"):
        context.ranged(node, "num_class", 1)


@CHECKS.register("pareto weights")
def check_pareto(context: Context) -> None:
    """Least weights of tasks leave room to choose, and are set where they work."""
    for node in context.of("ModelConfig"):
        found = towers(context)
        if node.message.use_pareto_loss_weight and len(found) < 2 and context.chosen(node, "model"):
            context.problem(node.at("use_pareto_loss_weight"), "needs a model of two or more task_towers")
        total = 0.0
        for tower in found:
            if "pareto_min_loss_weight" not in tower.message.DESCRIPTOR.fields_by_name:
                continue
            context.ranged(tower, "pareto_min_loss_weight", 0, 1)
            total += tower.message.pareto_min_loss_weight
            if tower.message.pareto_min_loss_weight and not node.message.use_pareto_loss_weight:
                context.problem(tower.at("pareto_min_loss_weight"), "needs use_pareto_loss_weight: true")
        # Sums of 32-bit floats that the user wrote as 0.1 go a little over.
        if total > 1 + 1e-6:
            what = f"the towers' pareto_min_loss_weight add up to {total:.7g}, which must be at most 1"
            context.problem(node.path, what)


def _check_multi_task(context: Context, node: Node, model: Node) -> None:
    """A model of towers has some, and keeps losses and metrics in them."""
    tasks = task_messages(model.message) or []
    place = TOWERS if TOWERS in model.message.DESCRIPTOR.fields_by_name else f"{FUSED}.task_configs"
    if not tasks:
        context.problem(model.path, f"{place} is empty")
    for field in ("losses", "metrics", "train_metrics"):
        if getattr(node.message, field):
            context.problem(f"{node.at(field)}[0]", f"{field} of a multi-task model belong into its {place}")
    if node.message.HasField("num_class"):
        context.problem(node.at("num_class"), f"num_class of a multi-task model belongs into its {place}")
    seen: set[str] = set()
    field = "tower_name" if place == TOWERS else "task_name"
    what = field.partition("_")[0] + "s"
    for at, tower in tasks:
        name = task_name(tower)
        if name and name in seen:
            context.problem(f"{model.at(at)}.{field}", f"two {what} are called {show(name)}; rename one")
        seen.add(name)


def _check_named(context: Context, node: Node, field: str, what: str, known: list[str]) -> None:
    name = getattr(node.message, field)
    if name and name not in known:
        context.unknown(node.at(field), what, name, known)
    required = node.message.DESCRIPTOR.fields_by_name[field].is_required
    if field == "label_name" and not name and not required:
        context.problem(node.at(field), "is required")
