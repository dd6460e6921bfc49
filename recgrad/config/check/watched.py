"""Metrics that decide something: they must be among those that are evaluated."""

from __future__ import annotations

from collections.abc import Iterator

from recgrad.config.check.rule import CHECKS, Context, Node
from recgrad.config.check.tasks import Task, tasks

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
    known: list[str] = []
    found = tasks(context)
    for task in found:
        for node, name in _named(context, task, "metrics"):
            if node.kind == "CustomComponent":
                return
            suffix = getattr(task.node.message, "tower_name", "")
            parts = _MANY_VALUED.get(name)
            names = [name] if parts is None else [f"{part}_{name}" for part in parts]
            known += [f"{one}_{suffix}" if suffix else one for one in names]
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
        if node is not None and node.kind != "CustomComponent":
            name = str(item.WhichOneof("metric")).removesuffix("_at_k")
            ranked = node.kind in ("RecallAtK", "NDCGAtK", "HitRateAtK") or (
                node.kind == "MRR" and node.message.HasField("top_k")
            )
            yield node, f"{name}@{node.message.top_k}" if ranked else name
        elif node is not None:
            yield node, node.message.class_path


def _watchers(context: Context) -> Iterator[tuple[Node, str]]:
    """Messages that name a metric, and the field that does."""
    for node in context.of("EarlyStopping", "ReduceOnPlateauLR"):
        yield node, "metric"
    for node in context.of("ExportConfig"):
        if node.message.exporter_type == "best":
            yield node, "best_exporter_metric"
