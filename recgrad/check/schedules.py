"""Learning-rate schedules: sizes, lists and shapes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from recgrad.check.rule import CHECKS, Context, Node

_HOLDERS = ("DenseOptimizer", "SparseOptimizer", "PartOptimizer", "SparsePartOptimizer", "Stage")
# Sizes without a default, which must be given and at least 1.
_SIZES = {
    "ExponentialDecayLR": ("decay_size",),
    "CosineAnnealingLR": ("T_max",),
    "CosineAnnealingWarmRestartsLR": ("T_0",),
    "StepDecayLR": ("step_size",),
    "OneCycleLR": ("total_size",),
    "PolynomialDecayLR": ("decay_size",),
    "LinearDecayLR": ("decay_size",),
    "WarmupStableDecayLR": ("decay_size",),
}
_WORDS = {
    ("OneCycleLR", "anneal"): ("cos", "linear"),
    ("WarmupStableDecayLR", "decay_shape"): ("linear", "cos", "sqrt", "exponential"),
    ("ReduceOnPlateauLR", "mode"): ("max", "min"),
    ("ReduceOnPlateauLR", "threshold_mode"): ("rel", "abs"),
}
_AT_LEAST_ZERO = ("warmup_learning_rate", "min_learning_rate", "min_lr", "threshold")


def schedules(context: Context) -> Iterator[Node]:
    """All schedules that are not refused."""
    for node in context.of(*_HOLDERS):
        chosen = context.chosen(node, "learning_rate")
        if chosen is not None:
            yield chosen


@CHECKS.register("schedules")
def check_schedules(context: Context) -> None:
    """Every schedule has its sizes, rates and shapes."""
    for node in schedules(context):
        fields = node.message.DESCRIPTOR.fields_by_name
        for field in _SIZES.get(node.kind, ()):
            if not node.message.HasField(field):
                context.problem(node.at(field), "is required")
            else:
                context.ranged(node, field, 1)
        for field in _AT_LEAST_ZERO:
            if field in fields:
                context.ranged(node, field, 0)
        for (kind, field), words in _WORDS.items():
            if kind == node.kind:
                context.one_of(node, field, words)
        check = _CHECKS.get(node.kind)
        if check is not None:
            check(context, node)


def _check_exponential(context: Context, node: Node) -> None:
    context.ranged(node, "decay_factor", 0, above=True)


def _check_manual(context: Context, node: Node) -> None:
    sizes, rates = list(node.message.schedule_sizes), list(node.message.learning_rates)
    if len(sizes) != len(rates):
        what = f"schedule_sizes has {len(sizes)} values and learning_rates {len(rates)}; give as many of each"
        context.problem(node.path, what)
    elif not sizes:
        context.problem(node.path, "schedule_sizes and learning_rates are empty; give at least one of each")
    for i, (left, right) in enumerate(pairwise(sizes)):
        if left >= right:
            context.problem(f"{node.at('schedule_sizes')}[{i + 1}]", f"must rise, got {left} before {right}")
            break
    for i, rate in enumerate(rates):
        if rate < 0:
            context.problem(f"{node.at('learning_rates')}[{i}]", f"must be at least 0, got {rate:.7g}")
    if node.message.warmup and node.message.warmup_size:
        context.problem(node.path, "warmup and warmup_size are both set; keep one")
    elif node.message.warmup and sizes and sizes[0] < 1:
        context.problem(f"{node.at('schedule_sizes')}[0]", "must be at least 1 with warmup, got 0")


def _check_restarts(context: Context, node: Node) -> None:
    context.ranged(node, "T_mult", 1)


def _check_step(context: Context, node: Node) -> None:
    context.ranged(node, "gamma", 0, 1, above=True)


def _check_one_cycle(context: Context, node: Node) -> None:
    message = node.message
    if message.HasField("max_lr"):
        context.ranged(node, "max_lr", 0, above=True)
    context.ranged(node, "pct_start", 0, 0.5 if message.three_phase else 1)
    context.ranged(node, "div_factor", 1)
    context.ranged(node, "final_div_factor", 1)
    context.ranged(node, "base_momentum", 0, 1, below=True)
    context.ranged(node, "max_momentum", 0, 1, below=True)
    if message.base_momentum > message.max_momentum:
        what = f"must be at most max_momentum {message.max_momentum:.7g}, got {message.base_momentum:.7g}"
        context.problem(node.at("base_momentum"), what)


def _check_polynomial(context: Context, node: Node) -> None:
    context.ranged(node, "power", 0, above=True)


def _check_inverse_sqrt(context: Context, node: Node) -> None:
    context.ranged(node, "warmup_size", 1)


def _check_stable(context: Context, node: Node) -> None:
    if node.message.decay_shape == "exponential" and not node.message.min_learning_rate:
        context.problem(node.path, "decay_shape 'exponential' needs a min_learning_rate above 0")


def _check_plateau(context: Context, node: Node) -> None:
    context.ranged(node, "factor", 0, 1, above=True, below=True)
    if not node.message.metric:
        context.problem(node.at("metric"), "is empty; name the metric to watch")
    if not context.config.eval_input_path:
        context.problem(node.path, "is driven by evaluation; set eval_input_path")


def _check_sequence(context: Context, node: Node) -> None:
    stages = node.message.stages
    if not stages:
        context.problem(node.path, "stages is empty")
    for i, stage in enumerate(stages):
        path = f"{node.at('stages')}[{i}]"
        choice = stage.WhichOneof("learning_rate")
        if choice is None:
            context.problem(path, "names no schedule")
        elif getattr(getattr(stage, choice), "by_epoch", False) and not node.message.by_epoch:
            context.problem(f"{path}.{choice}.by_epoch", "belongs on the sequence; all stages count the same")
        if i < len(stages) - 1 and not stage.size:
            context.problem(path, "'size' must be at least 1 for every stage but the last")


_CHECKS = {
    "ExponentialDecayLR": _check_exponential,
    "ManualStepLR": _check_manual,
    "CosineAnnealingWarmRestartsLR": _check_restarts,
    "StepDecayLR": _check_step,
    "OneCycleLR": _check_one_cycle,
    "PolynomialDecayLR": _check_polynomial,
    "InverseSqrtLR": _check_inverse_sqrt,
    "WarmupStableDecayLR": _check_stable,
    "ReduceOnPlateauLR": _check_plateau,
    "SequenceLR": _check_sequence,
}


@CHECKS.register("warm-up within the run")
def check_warmup(context: Context) -> None:
    """A warm-up that outlasts training never reaches the rate."""
    train = context.config.train_config
    for node in schedules(context):
        message = node.message
        if "warmup_size" not in message.DESCRIPTOR.fields_by_name:
            continue
        length = train.num_epochs if getattr(message, "by_epoch", False) else train.num_steps
        if length and message.warmup_size >= length:
            unit = "epochs" if getattr(message, "by_epoch", False) else "steps"
            what = f"{message.warmup_size} is not less than the {length} {unit} of training"
            context.hint(node.at("warmup_size"), f"{what}, so the full rate is never reached")
