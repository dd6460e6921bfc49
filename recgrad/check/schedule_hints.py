"""Hints on schedules: warm-ups and steps that are unusual, by the field's rules of thumb."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from recgrad.check.node import Node
from recgrad.check.rule import CHECKS, Context

LARGE_BATCH = 1000
"""Rows of an update above which early steps want a long warm-up."""
LARGE_BATCH_WARMUP = (0.15, 0.20)
ATTENTION_WARMUP = (0.10, 0.10)
FINE_TUNING_WARMUP = (0.06, 0.06)
"""The share of the run's steps that a warm-up usually has."""
_UNSTABLE = "since early steps are the least stable"
_UNDONE = "and a tenth of the rate that it was trained with: large first steps undo what it learned"


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
    if schedule is not None and getattr(context.built.get(schedule.path), "warms_up", True):
        return  # one of the user's own may do it in its own way
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
    if has_self_attention(context):
        yield _Reason("self-attention;", ATTENTION_WARMUP, _UNSTABLE)
    if train.fine_tune_checkpoint:
        yield _Reason("a fine_tune_checkpoint;", FINE_TUNING_WARMUP, _UNDONE)


def has_self_attention(context: Context) -> bool:
    """Whether positions of a sequence look at each other."""
    return any(component.trait("self_attention", False) for component in context.components)


def run_steps(context: Context) -> int | None:
    """The updates of the run, where the config and the number of rows tell it."""
    train, data = context.config.train_config, context.config.data_config
    if train.num_steps:
        return int(train.num_steps)
    rows = data.batch_size * max(1, train.gradient_accumulation_steps) * (context.ranks or 1)
    if context.rows is None or not train.num_epochs or not rows:
        return None
    return int(train.num_epochs) * max(1, -(-context.rows // rows))


@CHECKS.register("hint: schedules")
def hint_schedules(context: Context) -> None:
    """What schedules themselves find unusual in their settings for this run."""
    for component in context.of_kind("schedule"):
        schedule = context.built.get(component.node.path)
        if schedule is None:
            continue
        length = context.config.train_config.num_epochs if schedule.by_epoch else run_steps(context)
        unusual = schedule.unusual(length)
        if unusual is not None:
            setting, what = unusual
            context.hint(component.at(setting) if setting else component.node.path, what)
