"""Tasks: towers, the labels they learn, and the fields they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recgrad.check.rule import CHECKS, Context, Node
from recgrad.config.values import show

TOWERS = ("TaskTower", "BayesTaskTower", "InterventionTaskTower")
MATCH_MODELS = frozenset({"dssm", "dssm_v2", "dat", "mind", "hstu_match", "sasrec", "hstu"})


@dataclass(frozen=True)
class Task:
    """What has losses and metrics: a tower, or the model itself.

    Attributes:
        node: the message that holds them.
        retrieval: the model scores an item against negatives, so that classes are items.
    """

    node: Node
    retrieval: bool = False

    @property
    def num_class(self) -> int:
        """Classes of the label; 1 for one logit."""
        return int(self.node.message.num_class)


def tasks(context: Context) -> list[Task]:
    """The tasks of the model; none when the model is unknown."""
    towers = [Task(node) for node in context.of(*TOWERS, "FusionSubTaskConfig")]
    if towers:
        return towers
    found = []
    for node in context.of("ModelConfig"):
        model = context.chosen(node, "model")
        name = node.message.WhichOneof("model")
        if model is None or "task_towers" in model.message.DESCRIPTOR.fields_by_name:
            continue
        if name != "custom_model" and not str(name).startswith("sid_"):
            found.append(Task(node, name in MATCH_MODELS))
    return found


@CHECKS.register("task towers")
def check_towers(context: Context) -> None:
    """Towers have names of their own, and learn labels that are read."""
    for node in context.of("ModelConfig"):
        model = context.chosen(node, "model")
        if model is not None and "task_towers" in model.message.DESCRIPTOR.fields_by_name:
            _check_multi_task(context, node, model)
    labels = list(context.config.data_config.label_fields)
    weights = list(context.config.data_config.sample_weight_fields)
    for node in context.of(*TOWERS, "FusionSubTaskConfig"):
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


@CHECKS.register("related towers")
def check_relations(context: Context) -> None:
    """A tower builds on towers that come before it."""
    for model in context.of("DBMTL", "DC2VR"):
        before: list[str] = []
        for i, tower in enumerate(model.message.task_towers):
            node = Node(f"{model.at('task_towers')}[{i}]", tower)
            field = "relation_tower_names" if model.kind == "DBMTL" else "intervention_tower_names"
            for j, name in enumerate(getattr(tower, field)):
                if name not in before:
                    context.unknown(f"{node.at(field)}[{j}]", "tower before this one", name, before)
            if model.kind == "DBMTL":
                _check_relation_mlp(context, node)
            before.append(tower.tower_name)


@CHECKS.register("pareto weights")
def check_pareto(context: Context) -> None:
    """Least weights of tasks leave room to choose, and are set where they work."""
    for node in context.of("ModelConfig"):
        towers = list(context.of(*TOWERS))
        if node.message.use_pareto_loss_weight and len(towers) < 2 and context.chosen(node, "model"):
            context.problem(node.at("use_pareto_loss_weight"), "needs a model of two or more task_towers")
        total = 0.0
        for tower in towers:
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
    if not model.message.task_towers:
        context.problem(model.path, "task_towers is empty")
    for field in ("losses", "metrics", "train_metrics"):
        if getattr(node.message, field):
            context.problem(
                f"{node.at(field)}[0]", f"{field} of a multi-task model belong into its task_towers"
            )
    if node.message.HasField("num_class"):
        context.problem(node.at("num_class"), "num_class of a multi-task model belongs into its task_towers")
    seen: set[str] = set()
    for i, tower in enumerate(model.message.task_towers):
        if tower.tower_name and tower.tower_name in seen:
            path = f"{model.at('task_towers')}[{i}].tower_name"
            context.problem(path, f"two towers are called {show(tower.tower_name)}; rename one")
        seen.add(tower.tower_name)


def _check_named(context: Context, node: Node, field: str, what: str, known: list[str]) -> None:
    name = getattr(node.message, field)
    if name and name not in known:
        context.unknown(node.at(field), what, name, known)
    required = node.message.DESCRIPTOR.fields_by_name[field].is_required
    if field == "label_name" and not name and not required:
        context.problem(node.at(field), "is required")


def _check_relation_mlp(context: Context, node: Node) -> None:
    related, mlp = bool(node.message.relation_tower_names), node.message.HasField("relation_mlp")
    if related and not mlp:
        context.problem(node.at("relation_tower_names"), "needs a relation_mlp")
