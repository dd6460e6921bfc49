"""Losses and metrics that fit the task."""

from __future__ import annotations

from recgrad.config.check.rule import CHECKS, Context, Node
from recgrad.config.check.tasks import Task, tasks

_ONE_LOGIT = ("binary_cross_entropy", "binary_focal_loss", "l2_loss")
_RETRIEVAL_METRICS = ("recall_at_k", "ndcg_at_k", "hit_rate_at_k", "mrr", "custom_metric")
_RANKED_METRICS = ("recall_at_k", "ndcg_at_k", "hit_rate_at_k", "mrr")
_BINARY_METRICS = ("auc", "grouped_auc", "normalized_entropy", "calibration")
_PROBABILITY_METRICS = (*_BINARY_METRICS, "multiclass_auc", "accuracy", "log_loss")
_VALUE_METRICS = ("mean_absolute_error", "mean_squared_error", "xauc", "grouped_xauc")


@CHECKS.register("losses")
def check_losses(context: Context) -> None:
    """Every task has losses, which agree with its number of classes and with each other."""
    for task in tasks(context):
        losses = _members(context, task.node, "losses", "loss")
        if not task.node.message.losses:
            context.problem(task.node.path, "losses is empty; name at least one")
        names = [name for name, _ in losses]
        for name, node in losses:
            if names.count(name) > 1 and name != "custom_loss":
                context.problem(node.path, f"{name} is given twice; keep one")
                break
        for name, node in losses:
            _check_classes(context, task, name, node)
        if "jrc_loss" in names and any(name in names for name in _ONE_LOGIT):
            other = next(name for name in names if name in _ONE_LOGIT)
            context.problem(task.node.path, f"jrc_loss has two logits and {other} one; keep one of them")
    for node in context.of("JRCLoss"):
        context.ranged(node, "alpha", 0, 1)
    for node in context.of("BinaryFocalLoss"):
        context.ranged(node, "alpha", 0, 1)
        context.ranged(node, "gamma", 0)
    for node in context.of("BinaryCrossEntropy", "SoftmaxCrossEntropy"):
        context.ranged(node, "label_smoothing", 0, 1)


@CHECKS.register("metrics")
def check_metrics(context: Context) -> None:
    """Metrics fit what the task predicts."""
    for task in tasks(context):
        losses = {name for name, _ in _members(context, task.node, "losses", "loss")}
        for field in ("metrics", "train_metrics"):
            for name, node in _members(context, task.node, field, "metric"):
                _check_metric(context, task, name, node, losses)
                _check_grouping(context, task, name, node, field)
    for node in context.of("AUC", "MulticlassAUC"):
        context.ranged(node, "thresholds", 2)
    for node in context.of("MulticlassAUC"):
        context.one_of(node, "average", ("macro", "weighted"))
    for node in context.of("RecallAtK", "NDCGAtK", "HitRateAtK", "Accuracy"):
        context.ranged(node, "top_k", 1)
    for node in context.of("Accuracy"):
        context.ranged(node, "threshold", 0, 1)
    for node in context.of("XAUC"):
        context.ranged(node, "sample_ratio", 0, 1, above=True)
    for node in context.of("Calibration"):
        context.ranged(node, "num_bins", 1)
    for node in context.of("TrainMetricConfig"):
        context.ranged(node, "decay_rate", 0, 1, below=True)
        context.ranged(node, "decay_step", 1)


def _members(context: Context, node: Node, field: str, oneof: str) -> list[tuple[str, Node]]:
    """Names and messages of the losses or metrics of a task that are not refused."""
    found = []
    for i, item in enumerate(getattr(node.message, field, ())):
        chosen = context.chosen(Node(f"{node.at(field)}[{i}]", item), oneof)
        if chosen is not None:
            found.append((str(item.WhichOneof(oneof)), chosen))
    return found


def _check_classes(context: Context, task: Task, name: str, node: Node) -> None:
    classes = task.num_class
    if task.retrieval:
        if name not in ("softmax_cross_entropy", "custom_loss"):
            context.problem(node.path, "a two-tower model learns by softmax_cross_entropy; use that")
    elif name in _ONE_LOGIT and classes > 1:
        context.problem(node.path, f"needs num_class 1, got {classes}")
    elif name == "jrc_loss" and classes > 2:
        context.problem(node.path, f"needs num_class 2, got {classes}")
    elif name == "softmax_cross_entropy" and classes < 2:
        context.problem(node.path, f"needs num_class of at least 2, got {classes}")


def _check_metric(context: Context, task: Task, name: str, node: Node, losses: set[str]) -> None:
    classes = task.num_class
    only_values = losses == {"l2_loss"}
    only_classes = bool(losses) and not losses & {"l2_loss", "custom_loss"}
    if task.retrieval:
        if name not in _RETRIEVAL_METRICS:
            known = ", ".join(_RANKED_METRICS)
            context.problem(node.path, f"does not fit a two-tower model; use one of {known}")
    elif name in _PROBABILITY_METRICS and only_values:
        context.problem(node.path, "needs probabilities, but l2_loss predicts values; use mean_squared_error")
    elif name in _BINARY_METRICS and classes > 2:
        context.problem(node.path, f"needs num_class 1 or 2, got {classes}")
    elif name == "multiclass_auc" and classes < 2:
        context.problem(node.path, f"needs num_class of at least 2, got {classes}; use auc")
    elif name in _VALUE_METRICS and only_classes and classes > 1:
        context.problem(node.path, f"compares one value a row, but the task has {classes} classes")
    elif name == "accuracy" and node.message.top_k > max(classes, 1):
        context.problem(node.at("top_k"), f"must be at most num_class {classes}, got {node.message.top_k}")


def _check_grouping(context: Context, task: Task, name: str, node: Node, field: str) -> None:
    """Rankings need the rows of a group, or a model that scores an item against others."""
    if name not in _RANKED_METRICS:
        return
    grouped = bool(node.message.grouping_key)
    if field == "train_metrics" and grouped:
        context.problem(node.at("grouping_key"), "is for evaluation, where all rows are kept; remove it here")
    elif field == "train_metrics" and not task.retrieval:
        context.problem(node.path, "needs a two-tower model while training; move it to metrics")
    elif not grouped and not task.retrieval:
        context.problem(node.path, "needs a grouping_key, the field whose rows are ranked together")
