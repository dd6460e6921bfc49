"""Metrics that decide something: they must be among those that are evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from recgrad.check.catalogue import catalogue_metrics
from recgrad.check.component import Component
from recgrad.check.node import Node
from recgrad.check.rule import CHECKS, Context
from recgrad.check.tasks import Task, tasks


@CHECKS.register("metric names")
def check_twice(context: Context) -> None:
    """No metric of a task stands twice under one name."""
    for task in tasks(context):
        for field in ("metrics", "train_metrics"):
            seen: set[str] = set()
            for component, metric in _metrics(context, task, field):
                name = component.node.message.class_path if component.own else _name(metric)
                if name and name in seen:
                    context.problem(component.node.path, f"'{name}' is given twice; keep one")
                seen.add(name)


@CHECKS.register("watched metrics")
def check_watched(context: Context) -> None:
    """Early stopping, the best checkpoint and plateaus watch a metric that is evaluated."""
    known = list(catalogue_metrics(context))
    found = tasks(context)
    for task in found:
        known += task.metrics
        for _, metric in _metrics(context, task, "metrics"):
            if metric is None:
                return  # of the user's own, or wrong; its values' names are not known
            suffix = getattr(task.node.message, "tower_name", "")
            known += [f"{name}_{suffix}" if suffix else name for name in metric.value_names]
    if not found or any(path.startswith("model_config") for path, _ in context.refusals):
        return
    for node, field in _watchers(context):
        name = getattr(node.message, field)
        if name and not context.config.eval_input_path:
            context.problem(node.at(field), "waits for evaluations, and eval_input_path is empty; set it")
        elif name and name not in known:
            context.unknown(node.at(field), "metric of the evaluation", name, known)


def _metrics(context: Context, task: Task, field: str) -> Iterator[tuple[Component, Any]]:
    """Metrics of a task, and what was built of them, if anything."""
    for component in context.of_kind("metric", "train_metric", within=task.node.at(field)):
        yield component, context.built.get(component.node.path)


def _name(metric: Any) -> str:
    return "" if metric is None else str(metric.display_name)


def _watchers(context: Context) -> Iterator[tuple[Node, str]]:
    """Messages that name a metric, and the field that does."""
    for node in context.of("EarlyStopping"):
        yield node, "metric"
    for component in context.of_kind("schedule"):
        if getattr(context.built.get(component.node.path), "metric", None) is not None:
            yield component.node, "metric"
    for node in context.of("ExportConfig"):
        if node.message.exporter_type == "best":
            yield node, "best_exporter_metric"
