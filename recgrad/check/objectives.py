"""Losses and metrics that fit the task."""

from __future__ import annotations

from recgrad.check.rule import CHECKS, Context, Node
from recgrad.check.tasks import Task, tasks
from recgrad.losses import LOSSES

_ONE_LOGIT = ("binary_cross_entropy", "binary_focal_loss", "l2_loss")
_RETRIEVAL_METRICS = ("recall_at_k", "ndcg_at_k", "hit_rate_at_k", "mrr", "custom_metric")
_RANKED_METRICS = ("recall_at_k", "ndcg_at_k", "hit_rate_at_k", "mrr")
_BINARY_METRICS = ("auc", "grouped_auc", "normalized_entropy", "calibration")
_PROBABILITY_METRICS = (*_BINARY_METRICS, "multiclass_auc", "accuracy", "log_loss")
_KEEPS_ROWS = "is for evaluation, where all rows are kept; remove it here"
_INFINITY = float("inf")
# message and field: low, high, whether low and high themselves are left out
_RANGES: dict[tuple[str, str], tuple[float, float, bool, bool]] = {
    ("AUC", "thresholds"): (2, _INFINITY, False, False),
    ("MulticlassAUC", "thresholds"): (2, _INFINITY, False, False),
    ("RecallAtK", "top_k"): (1, _INFINITY, False, False),
    ("NDCGAtK", "top_k"): (1, _INFINITY, False, False),
    ("HitRateAtK", "top_k"): (1, _INFINITY, False, False),
    ("MRR", "top_k"): (1, _INFINITY, False, False),
    ("Accuracy", "top_k"): (1, _INFINITY, False, False),
    ("Accuracy", "threshold"): (0, 1, False, False),
    ("XAUC", "sample_ratio"): (0, 1, True, False),
    ("XAUC", "max_pairs"): (1, _INFINITY, False, False),
    ("GroupedXAUC", "max_pairs_per_group"): (1, _INFINITY, False, False),
    ("Calibration", "num_bins"): (1, _INFINITY, False, False),
    ("LogLoss", "eps"): (0, 0.5, True, True),
    ("NormalizedEntropy", "eta"): (0, 0.5, True, True),
    ("TrainMetricConfig", "decay_rate"): (0, 1, False, True),
    ("TrainMetricConfig", "decay_step"): (1, _INFINITY, False, False),
}
# What leaves which settings without effect, the strongest first.
_SWITCHES: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "AUC": (("exact", ("thresholds",)),),
    "MulticlassAUC": (("exact", ("thresholds",)),),
    "GroupedXAUC": (("exact", ("max_pairs_per_group",)),),
    "XAUC": (
        ("exact", ("sample_ratio", "max_pairs", "in_batch")),
        ("in_batch", ("sample_ratio", "max_pairs")),
        ("max_pairs", ("sample_ratio",)),
    ),
}
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
        context.ranged(node, "alpha", 0, 1, above=True, below=True)
        context.ranged(node, "gamma", 0)
    for node in context.of("BinaryCrossEntropy", "SoftmaxCrossEntropy"):
        context.ranged(node, "label_smoothing", 0, 1, below=True)


@CHECKS.register("metrics")
def check_metrics(context: Context) -> None:
    """Metrics fit what the task predicts."""
    for task in tasks(context):
        losses = {name for name, _ in _members(context, task.node, "losses", "loss")}
        for field in ("metrics", "train_metrics"):
            for name, node in _members(context, task.node, field, "metric"):
                _check_metric(context, task, name, node, losses)
                _check_grouping(context, task, name, node, field)
                if field == "train_metrics" and name == "auc" and node.message.exact:
                    context.problem(node.at("exact"), _KEEPS_ROWS)


@CHECKS.register("metric settings")
def check_metric_settings(context: Context) -> None:
    """Every setting of a metric is in its range, and has an effect."""
    for (kind, field), (low, high, above, below) in _RANGES.items():
        for node in context.of(kind):
            if node.message.HasField(field):
                context.ranged(node, field, low, high, above=above, below=below)
    for node in context.of("MulticlassAUC"):
        context.one_of(node, "average", ("macro", "weighted"))
    _check_switches(context)


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
        if name in LOSSES and not LOSSES[name].takes_candidates:
            fitting = ", ".join(n for n in LOSSES if LOSSES[n].takes_candidates)
            context.problem(node.path, f"does not compare an item with negatives; use one of {fitting}")
        _check_candidates(context, task, name, node)
    elif name in LOSSES and not LOSSES[name].takes_labels:
        context.problem(node.path, "compares an item with negatives, so it needs a two-tower model")
    elif name in _ONE_LOGIT and classes > 1:
        context.problem(node.path, f"needs num_class 1, got {classes}")
    elif name == "jrc_loss" and classes > 2:
        context.problem(node.path, f"needs num_class 2, got {classes}")
    elif name == "softmax_cross_entropy" and classes < 2:
        context.problem(node.path, f"needs num_class of at least 2, got {classes}")
    elif name == "softmax_cross_entropy" and node.message.log_q_correction:
        context.problem(node.at("log_q_correction"), "is for the negatives of two-tower models; remove it")


def _check_candidates(context: Context, task: Task, name: str, node: Node) -> None:
    """The data have what a loss over candidates asks for."""
    sampler = context.config.data_config.WhichOneof("sampler")
    if name in LOSSES and LOSSES[name].over_vectors:
        if sampler == "next_item_sampler" and context.config.data_config.next_item_sampler.num_sample:
            context.problem(node.path, "needs all items; remove data_config.next_item_sampler.num_sample")
        elif sampler not in ("catalogue_sampler", "next_item_sampler"):
            context.problem(node.path, "needs all items; set data_config.catalogue_sampler")
        if task.node.message.train_metrics:
            path = f"{task.node.at('train_metrics')}[0]"
            context.problem(path, f"{name} computes no scores that it could measure; move it to metrics")
    corrected = name == "softmax_cross_entropy" and node.message.log_q_correction
    if corrected and sampler in (None, "catalogue_sampler"):
        what = "needs a sampler that says how often items are drawn, such as data_config.in_batch_sampler"
        context.problem(node.at("log_q_correction"), what)


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
    elif name == "accuracy":
        _check_accuracy(context, node, classes)


def _check_accuracy(context: Context, node: Node, classes: int) -> None:
    """Two classes have a threshold between them; more have places."""
    most = max(classes - 1, 1)
    if node.message.top_k > most:
        what = f"must be at most {most} with num_class {classes}, got {node.message.top_k}"
        context.problem(node.at("top_k"), what)
    if classes > 2 and node.message.HasField("threshold"):
        context.problem(node.at("threshold"), f"is for num_class 1 or 2, got {classes}; use top_k")


def _check_switches(context: Context) -> None:
    """Settings that have no effect because of another beside them."""
    for kind, switches in _SWITCHES.items():
        for node in context.of(kind):
            switch, fields = next((s for s in switches if getattr(node.message, s[0])), ("", ()))
            for field in fields:
                default = node.message.DESCRIPTOR.fields_by_name[field].default_value
                if not node.message.HasField(field) or getattr(node.message, field) == default:
                    continue
                # Configs of TorchEasyRec may hold a sample_ratio beside what overrules it.
                report = context.hint if field == "sample_ratio" and switch != "exact" else context.problem
                report(node.at(field), f"has no effect with {switch}; keep one")


def _check_grouping(context: Context, task: Task, name: str, node: Node, field: str) -> None:
    """Rankings need the rows of a group, or a model that scores an item against others."""
    if name not in _RANKED_METRICS:
        return
    grouped = bool(node.message.grouping_key)
    if field == "train_metrics" and grouped:
        context.problem(node.at("grouping_key"), _KEEPS_ROWS)
    elif field == "train_metrics" and not task.retrieval:
        context.problem(node.path, "needs a two-tower model while training; move it to metrics")
    elif not grouped and not task.retrieval:
        context.problem(node.path, "needs a grouping_key, the field whose rows are ranked together")
