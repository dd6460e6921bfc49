"""Losses and metrics that fit the task."""

from __future__ import annotations

from recgrad.check.component import Component
from recgrad.check.rule import CHECKS, Context
from recgrad.check.tasks import Task, tasks
from recgrad.losses import LOSSES
from recgrad.metrics import METRICS


@CHECKS.register("losses")
def check_losses(context: Context) -> None:
    """Every task has losses, which agree with its number of classes and with each other."""
    for task in tasks(context):
        losses = losses_of(context, task)
        if task.codes:
            _check_codes(context, task)
        elif not task.node.message.losses:
            context.problem(task.node.path, "losses is empty; name at least one")
        names = [loss.name for loss in losses]
        for loss in losses:
            if names.count(loss.name) > 1 and not loss.own:
                context.problem(loss.node.path, f"{loss.name} is given twice; keep one")
                break
        problems = [_class_problem(task, loss) for loss in losses]
        for loss, problem in zip(losses, problems, strict=True):
            if problem is not None:
                context.problem(loss.node.path, problem)
        if not any(problems) and not task.codes:
            _check_logits(context, task, losses)
        for loss in losses:
            _check_candidates(context, task, loss)


def _check_codes(context: Context, task: Task) -> None:
    """Models of semantic ids learn from their losses, or without any, and have metrics of their own."""
    learns = any(model.trait("takes_losses", True) for model in context.of_kind("model"))
    if learns and not task.node.message.losses:
        context.problem(task.node.path, "losses is empty; name recon_loss and commitment_loss")
    if not learns and task.node.message.losses:
        context.problem(f"{task.node.at('losses')}[0]", "has no effect: k-means minimises no loss; remove it")
    for field in ("metrics", "train_metrics"):
        if getattr(task.node.message, field):
            names = ", ".join(task.metrics)
            context.problem(
                f"{task.node.at(field)}[0]", f"needs labels; semantic ids are measured by {names}"
            )
    if task.node.message.HasField("variational_dropout"):
        context.problem(task.node.at("variational_dropout"), "would drop parts of the vectors; remove it")
    if context.config.data_config.sample_weight_fields:
        what = "semantic-id models weigh all rows alike; remove it"
        context.problem("data_config.sample_weight_fields[0]", what)


@CHECKS.register("losses of one kind")
def check_one_loss(context: Context) -> None:
    """A loss is of labels or of semantic ids."""
    for node in context.of("LossConfig"):
        names = [node.message.WhichOneof(oneof) for oneof in ("loss", "sid_loss")]
        if all(names):
            context.problem(node.path, f"names {names[0]} and {names[1]}; write two losses")


def losses_of(context: Context, task: Task) -> list[Component]:
    """The losses of a task that are not refused and whose classes are known."""
    within = task.node.at("losses")
    return [loss for loss in context.of_kind("loss", within=within) if loss.cls is not None]


def _class_problem(task: Task, loss: Component) -> str | None:
    """Why a loss cannot be used for a task of so many classes."""
    logits, classes = loss.trait("num_logits", 1), task.num_class
    if task.codes or loss.trait("takes_codes", False):
        if task.codes and loss.trait("takes_codes", False):
            return None
        fitting = ", ".join(name for name, cls in LOSSES.items() if cls.takes_codes)
        return f"is no loss of semantic ids; use {fitting}" if task.codes else "is for semantic-id models"
    if task.retrieval:
        if loss.trait("takes_candidates", False) or (loss.own and logits is None):
            return None
        fitting = ", ".join(name for name, cls in LOSSES.items() if cls.takes_candidates)
        return f"does not compare an item with negatives; use one of {fitting}"
    if not loss.trait("takes_labels", True):
        return "compares an item with negatives, so it needs a two-tower model"
    if logits is None:
        return None if classes > 1 else f"needs num_class of at least 2, got {classes}"
    return None if classes in (1, logits) else f"needs num_class {logits}, got {classes}"


def _check_logits(context: Context, task: Task, losses: list[Component]) -> None:
    """All losses of a task take the same number of logits."""
    first: dict[int, str] = {}
    for loss in losses:
        first.setdefault(loss.trait("num_logits", 1) or task.num_class, loss.name)
    if len(first) > 1:
        (most, one), (least, other) = sorted(first.items(), reverse=True)[:2]
        what = f"{one} has {most} logits and {other} {least}; keep one of them"
        context.problem(task.node.path, what)


def _check_candidates(context: Context, task: Task, loss: Component) -> None:
    """The data have what a loss over candidates asks for."""
    sampler = next(context.of_kind("sampler"), None)
    draws = None if sampler is None else sampler.trait("draws")
    if task.retrieval and loss.trait("over_vectors", False):
        if draws == "positions" and sampler is not None and sampler.settings.get("num_sample"):
            what = f"needs all items; remove {sampler.at('num_sample')}"
            context.problem(loss.node.path, what)
        elif draws not in ("all", "positions"):
            context.problem(loss.node.path, "needs all items; set data_config.catalogue_sampler")
        if task.node.message.train_metrics:
            path = f"{task.node.at('train_metrics')}[0]"
            context.problem(path, f"{loss.name} computes no scores that it could measure; move it to metrics")
    elif task.retrieval and draws == "all" and sampler is not None and sampler.settings.get("num_sample"):
        context.problem(
            sampler.at("num_sample"),
            f"is for full_softmax, and {loss.name} would not count draws for what they stand for; remove it",
        )
    if not loss.settings.get("log_q_correction"):
        return
    path = loss.at("log_q_correction")
    if not task.retrieval:
        context.problem(path, "is for the negatives of two-tower models; remove it")
    elif draws in (None, "all"):
        what = "needs a sampler that says how often items are drawn, such as data_config.in_batch_sampler"
        context.problem(path, what)


@CHECKS.register("metrics")
def check_metrics(context: Context) -> None:
    """Metrics fit what the task predicts."""
    for task in tasks(context):
        if task.codes:
            continue
        losses = [loss for loss in losses_of(context, task) if _class_problem(task, loss) is None]
        for kind, field in (("metric", "metrics"), ("train_metric", "train_metrics")):
            for metric in context.of_kind(kind, within=task.node.at(field)):
                if hasattr(metric.cls, "compares"):
                    _check_fit(context, task, metric, losses)
                    _check_ranks(context, task, metric)


def _check_fit(context: Context, task: Task, metric: Component, losses: list[Component]) -> None:
    compares, path = metric.trait("compares"), metric.node.path
    predicted = {loss.trait("predicts") for loss in losses}
    if task.retrieval:
        if compares != "ranks":
            known = ", ".join(name for name, cls in METRICS.items() if cls.compares == "ranks")
            context.problem(path, f"does not fit a two-tower model; use one of {known}")
    elif compares == "probabilities" and predicted == {"values"}:
        names = " and ".join(loss.name for loss in losses)
        context.problem(path, f"needs probabilities, but {names} predicts values; use mean_squared_error")
    elif compares == "values" and predicted == {"probabilities"} and task.num_class > 1:
        context.problem(path, f"compares one value per row, but the task has {task.num_class} classes")


def _check_ranks(context: Context, task: Task, metric: Component) -> None:
    """Rankings need the rows of a group, or a model that scores an item against others."""
    if metric.trait("compares") != "ranks" or task.retrieval:
        return
    if metric.kind == "train_metric":
        if not context.is_broken(metric.node.path):
            context.problem(metric.node.path, "needs a two-tower model while training; move it to metrics")
    elif not metric.settings.get("grouping_key"):
        context.problem(metric.node.path, "needs a grouping_key, the field whose rows are ranked together")
