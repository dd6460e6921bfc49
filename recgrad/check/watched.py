"""Metrics that decide something: they must be among those that are evaluated."""

from __future__ import annotations

from collections.abc import Iterator

from recgrad.check.catalogue import catalogue_metrics
from recgrad.check.rule import CHECKS, Context, Node
from recgrad.check.tasks import Task, tasks
from recgrad.config.proto.metric_pb2 import MetricConfig, TrainMetricConfig

# What metrics call themselves, and the parts of those that have several values. The metrics
# cannot be asked: the check comes before they are imported.
_RANKED = ("RecallAtK", "NDCGAtK", "HitRateAtK")
_MANY_VALUED = {"calibration": ("ratio", "ece")}


@CHECKS.register("metric names")
def check_twice(context: Context) -> None:
    """No metric of a task stands twice under one name."""
    for task in tasks(context):
        for field in ("metrics", "train_metrics"):
            seen: set[str] = set()
            for node, name in _named(context, task, field):
                if name in seen:
                    context.problem(node.path, f"'{name}' is given twice; keep one")
                seen.add(name)


@CHECKS.register("watched metrics")
def check_watched(context: Context) -> None:
    """Early stopping, the best checkpoint and plateaus watch a metric that is evaluated."""
    known = list(catalogue_metrics(context))
    found = tasks(context)
    for task in found:
        for node, name in _named(context, task, "metrics"):
            if node.kind == "CustomComponent":
                return
            suffix = getattr(task.node.message, "tower_name", "")
            known += [f"{one}_{suffix}" if suffix else one for one in value_names(name)]
    if not found or any(path.startswith("model_config") for path, _ in context.refusals):
        return
    for node, field in _watchers(context):
        name = getattr(node.message, field)
        if name and not context.config.eval_input_path:
            context.problem(node.at(field), "waits for evaluations, and eval_input_path is empty; set it")
        elif name and name not in known:
            context.unknown(node.at(field), "metric of the evaluation", name, known)


def _named(context: Context, task: Task, field: str) -> Iterator[tuple[Node, str]]:
    """Metrics of a task, and the names that evaluation gives them."""
    for i, item in enumerate(getattr(task.node.message, field, ())):
        node = context.chosen(Node(f"{task.node.at(field)}[{i}]", item), "metric")
        if node is not None:
            yield node, display_name(item)


def display_name(metric: MetricConfig | TrainMetricConfig) -> str:
    """What evaluation calls a metric: its name in the config, with the k of those that have one."""
    choice = str(metric.WhichOneof("metric"))
    message = getattr(metric, choice)
    kind = message.DESCRIPTOR.name
    if kind == "CustomComponent":
        return str(message.class_path)
    ranked = kind in _RANKED or (kind == "MRR" and message.HasField("top_k"))
    return f"{choice.removesuffix('_at_k')}@{message.top_k}" if ranked else choice


def value_names(name: str) -> list[str]:
    """The names of a metric's values: its own, or one for each part."""
    return [f"{part}_{name}" for part in _MANY_VALUED[name]] if name in _MANY_VALUED else [name]


def _watchers(context: Context) -> Iterator[tuple[Node, str]]:
    """Messages that name a metric, and the field that does."""
    for node in context.of("EarlyStopping", "ReduceOnPlateauLR"):
        yield node, "metric"
    for node in context.of("ExportConfig"):
        if node.message.exporter_type == "best":
            yield node, "best_exporter_metric"
