"""Hints: what works but is unusual, by the field's rules of thumb. They never stop a run."""

from __future__ import annotations

import math

from recgrad.check.node import Node
from recgrad.check.rule import CHECKS, Context, number
from recgrad.check.schedule_hints import has_self_attention
from recgrad.config.values import show
from recgrad.cpu import native_bf16, read_flags

# Within this factor of the usual range nothing is said: the field itself doubles and halves.
_TOLERANCE = 3.0
# A weight decay beyond this factor of the usual one is worth a word.
_DECAY_TOLERANCE = 10.0
FINE_TUNING_RATE = 0.1
"""What a rate is usually multiplied by in fine-tuning."""
SHORT_RUN, LONG_RUN = 20, 100
SHORT_RUN_DECAY, LONG_RUN_DECAY = 0.5, 2.0
"""Epochs below and above which a run is short or long, and what the weight decay is multiplied by then."""
ATTENTION_DECAY = 0.1
"""What the weight decay is multiplied by in models with self-attention."""


@CHECKS.register("hint: learning rate")
def hint_rate(context: Context) -> None:
    """A learning rate far from what is usual for the optimizer."""
    for component in context.of_kind("dense_optimizer", "sparse_optimizer"):
        rates, rate = component.trait("usual_rates"), component.settings.get("lr", 0.0)
        if rates is None or not 0 < rate < math.inf:
            continue
        usual = rates.of(component.settings)
        if context.config.train_config.fine_tune_checkpoint:
            usual = (usual[0] * FINE_TUNING_RATE, usual[1])  # few lower it, and they may
        if usual[0] / _TOLERANCE <= rate <= usual[1] * _TOLERANCE:
            continue
        side = "below" if rate < usual[0] else "above"
        context.hint(
            component.at("lr"),
            f"{number(rate)} is {side} the usual {usual[0]:g} … {usual[1]:g} of {component.name}"
            f"{'; training may be slow' if side == 'below' else '; training may be unstable'}",
        )


@CHECKS.register("hint: weight decay")
def hint_decay(context: Context) -> None:
    """A weight decay far from what is usual for such data, such a run and such a model."""
    if context.rows is None:
        return
    epochs = context.config.train_config.num_epochs
    attention = has_self_attention(context)
    usual = usual_decay(context.rows, epochs or None, attention=attention)
    length = f" in {epochs} {'epoch' if epochs == 1 else 'epochs'}" if epochs else ""
    run = f"{context.rows} rows of data{length}{' with self-attention' if attention else ''}"
    for component in context.of_kind("dense_optimizer", "sparse_optimizer"):
        decay = component.settings.get("weight_decay", 0.0)
        if decay and not usual / _DECAY_TOLERANCE <= decay <= usual * _DECAY_TOLERANCE:
            context.hint(
                component.at("weight_decay"),
                f"{number(decay)} is far from the usual {usual:g} for {run}",
            )


@CHECKS.register("hint: BF16")
def hint_bf16(context: Context) -> None:
    """BF16 on a CPU that has to emulate it."""
    if context.config.train_config.mixed_precision != "BF16":
        return
    flags = read_flags() if context.cpu_flags is None else frozenset(context.cpu_flags)
    if flags and not native_bf16(flags):
        context.hint(
            "train_config.mixed_precision",
            "this CPU has no native BF16 (AVX512-BF16 or AMX) and emulates it, several times slower "
            "than FP32; leave it out unless training runs on a GPU",
        )


_ALONE = "has no effect in one process; it is for several (recgrad train --nproc N, or torchrun)"


@CHECKS.register("hint: constraints of tables")
def hint_constraints(context: Context) -> None:
    """Ways to spread tables over processes, where there is one process."""
    if context.ranks != 0:
        return
    first, *others = [node.path for node in context.of("ParameterConstraints")] or [""]
    if first:
        more = f"; the same holds for {len(others)} more" if others else ""
        context.hint(first, _ALONE + more)


@CHECKS.register("hint: exchange of processes")
def hint_exchange(context: Context) -> None:
    """Half precision between processes, where there is one process."""
    if context.ranks in (0, 1) and context.config.train_config.half_precision_exchange:
        context.hint("train_config.half_precision_exchange", _ALONE)


@CHECKS.register("hint: unused features")
def hint_unused(context: Context) -> None:
    """Features that are read and encoded for nothing."""
    if not context.features or not list(context.of("FeatureGroupConfig")):
        return
    used: set[str] = set()
    for node in context.of("FeatureGroupConfig", "SeqGroupConfig"):
        used.update(node.message.feature_names)
    for node in context.nodes:
        fields = node.message.DESCRIPTOR.fields_by_name
        used.update(
            getattr(node.message, name) for name in ("grouping_key", "session_name") if name in fields
        )
    for feature in context.features:
        used.update(_features_read(feature.node))
    unused = [
        feature
        for feature in context.features
        if feature.name not in used and not getattr(feature.node.message, "stub_type", False)
    ]
    if unused:
        names = ", ".join(show(feature.name) for feature in unused[:5]) + (" …" if len(unused) > 5 else "")
        what = f"{names} is in no feature group"
        if len(unused) > 1:
            what = f"{len(unused)} features are in no feature group: {names}"
        context.hint(unused[0].node.path, what)


def usual_decay(rows: int, epochs: int | None = None, *, attention: bool = False) -> float:
    """The weight decay that is usual for so many rows of data, gone through so often."""
    decay = 1e-3 if rows < 10_000 else 1e-4 if rows <= 1_000_000 else 1e-5
    if epochs is not None and epochs < SHORT_RUN:
        decay *= SHORT_RUN_DECAY
    elif epochs is not None and epochs > LONG_RUN:
        decay *= LONG_RUN_DECAY
    return decay * (ATTENTION_DECAY if attention else 1.0)


def _features_read(node: Node) -> list[str]:
    """Names that a feature's inputs give after `feature:`."""
    found: list[str] = []
    for field, value in node.message.ListFields():
        if field.message_type is None and field.type == field.TYPE_STRING:
            texts = value if field.is_repeated else [value]
            found.extend(text[8:] for text in texts if text.startswith("feature:"))
    return found
