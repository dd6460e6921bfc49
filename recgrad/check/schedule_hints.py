"""Hints on schedules: warm-ups and steps that are unusual, by the field's rules of thumb."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from recgrad.check.rule import CHECKS, Context, Node, number
from recgrad.check.schedules import schedules
from recgrad.config.messages import shortest_float

LARGE_BATCH = 1000
"""Rows of an update above which early steps want a long warm-up."""
LARGE_BATCH_WARMUP = (0.15, 0.20)
ATTENTION_WARMUP = (0.10, 0.10)
FINE_TUNING_WARMUP = (0.06, 0.06)
"""The share of the run's steps that a warm-up usually has."""
STEP_SIZES = (2000, 4000)
STEP_GAMMAS = (0.1, 0.5)
"""What step decay usually has."""
# A rate below this share of its start no longer teaches anything.
_FALLEN = 1e-4
_UNSTABLE = "since early steps are the least stable"
_UNDONE = "and a tenth of the rate that it was trained with: large first steps undo what it learned"
# Schedules in whose message a warm-up cannot be seen: one of its stages, or a class of the user's own.
_MAY_WARM_UP = ("SequenceLR", "CustomComponent")


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why a warm-up is usual: what the run has, the usual share of its steps, and what comes of it."""

    what: str
    share: tuple[float, float]
    because: str


@CHECKS.register("hint: warm-up")
def hint_warmup(context: Context) -> None:
    """A run without a warm-up of the dense rate where one is usual."""
    train = context.config.train_config
    if not context.config.HasField("data_config") or not train.HasField("dense_optimizer"):
        return
    reason = next(_reasons(context), None)
    if reason is None:
        return
    dense = Node("train_config.dense_optimizer", train.dense_optimizer)
    optimizer = context.chosen(dense, "optimizer")
    if optimizer is None or getattr(optimizer.message, "warmup_steps", None):
        return
    schedule = context.chosen(dense, "learning_rate")
    if schedule is not None and (_warms_up(schedule) or schedule.kind in _MAY_WARM_UP):
        return
    low, high = reason.share
    share = f"{low:.0%}" if low == high else f"{low * 100:.0f}–{high:.0%}"
    steps = run_steps(context)
    size = ""
    if steps:
        least, most = round(low * steps), round(high * steps)
        size = f" ({least} here)" if least == most else f" ({least}–{most} here)"
    usual = f"a warmup_size of {share} of the steps{size} is usual"
    context.hint(dense.path, f"no warm-up with {reason.what} {usual}, {reason.because}")


def _reasons(context: Context) -> Iterator[_Reason]:
    """Why this run would have a warm-up, the longest first."""
    train = context.config.train_config
    own = context.config.data_config.batch_size * max(1, train.gradient_accumulation_steps)
    size = own * (context.ranks or 1)
    if size > LARGE_BATCH:
        rows = f"{size} rows per process" if context.ranks is None else f"{size} rows"
        if size > own:
            rows += f" ({context.ranks} processes of {own})"
        what = f"a batch of {rows}; above {LARGE_BATCH}"
        yield _Reason(what, LARGE_BATCH_WARMUP, _UNSTABLE)
    if any(True for _ in context.of("SelfAttentionEncoder")):
        yield _Reason("self-attention;", ATTENTION_WARMUP, _UNSTABLE)
    if train.fine_tune_checkpoint:
        yield _Reason("a fine_tune_checkpoint;", FINE_TUNING_WARMUP, _UNDONE)


def run_steps(context: Context) -> int | None:
    """The updates of the run, where the config and the number of rows tell it."""
    train, data = context.config.train_config, context.config.data_config
    if train.num_steps:
        return int(train.num_steps)
    rows = data.batch_size * max(1, train.gradient_accumulation_steps) * (context.ranks or 1)
    if context.rows is None or not train.num_epochs or not rows:
        return None
    return int(train.num_epochs) * max(1, -(-context.rows // rows))


@CHECKS.register("hint: step decay")
def hint_steps(context: Context) -> None:
    """A step decay that hardly falls, falls at once, or falls to nothing."""
    for node in schedules(context):
        if node.kind == "StepDecayLR" and node.message.step_size >= 1:
            _hint_step(context, node)


def _hint_step(context: Context, node: Node) -> None:
    size, gamma = node.message.step_size, shortest_float(node.message.gamma)
    by_epoch = node.message.by_epoch
    unit = "epochs" if by_epoch else "steps"
    length = context.config.train_config.num_epochs if by_epoch else run_steps(context)
    usual = f"usual are a step_size of {STEP_SIZES[0]}–{STEP_SIZES[1]} steps and a gamma of "
    usual += f"{STEP_GAMMAS[0]:g}–{STEP_GAMMAS[1]:g}"
    if not 0 < gamma <= 1:
        return  # which is a problem
    if length and size + node.message.warmup_size >= length:
        what = f"{size} is not less than the {length} {unit} of training, so the rate never falls"
        context.hint(node.at("step_size"), f"{what}; {usual}")
        return
    if gamma < STEP_GAMMAS[0] / 2:
        context.hint(node.at("gamma"), f"{number(gamma)} ends training at the first step down; {usual}")
        return
    falls = (length - node.message.warmup_size) // size if length else 0
    if gamma < 1 and falls and gamma**falls < _FALLEN and not node.message.min_learning_rate:
        left = f"the rate falls {falls} times to {gamma**falls:.1g} of its start"
        context.hint(node.path, f"{left}; {usual}, or set min_learning_rate")


def _warms_up(schedule: Node) -> bool:
    message = schedule.message
    if schedule.kind == "OneCycleLR":
        return True
    return bool(getattr(message, "warmup_size", 0) or getattr(message, "warmup", False))
