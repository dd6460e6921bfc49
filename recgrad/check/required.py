"""Fields and choices that a config cannot do without."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from recgrad.check.node import Node
from recgrad.check.rule import CHECKS, Context
from recgrad.check.unsupported import KINDS
from recgrad.data.features.base import INPUT_FIELDS

_MAY_BE_EMPTY = frozenset({"eval_input_path"})
_MAY_BE_LEFT_OUT = frozenset({"sampler", "sid_loss"})
_NOUNS = {"seq_module": "encoder", "learning_rate": "schedule"}


@CHECKS.register("required fields")
def check_required(context: Context) -> None:
    """Report required fields that are missing or empty."""
    for section in ("train_config", "data_config", "model_config"):
        if not context.config.HasField(section):
            context.problem(section, "is missing")
    if not context.config.feature_configs:
        context.problem("feature_configs", "is missing; a model needs features")
    for node in context.nodes:
        for field in _required_fields(node.message.DESCRIPTOR):
            _check_field(context, node, field)


@CHECKS.register("choices")
def check_choices(context: Context) -> None:
    """Report oneofs that must hold something and hold nothing."""
    for kind, oneof in KINDS:
        optional = oneof == "learning_rate" and kind != "Stage"  # then the rate is constant
        if oneof in _MAY_BE_LEFT_OUT or optional:
            continue
        for node in context.of(kind):
            chosen = [node.message.WhichOneof(name) for message, name in KINDS if message == kind]
            if node.message.WhichOneof(oneof) is None and not (oneof == "loss" and any(chosen)):
                context.problem(node.path, f"names no {_NOUNS.get(oneof, oneof)}")


@lru_cache(maxsize=1024)
def _required_fields(message: Any) -> tuple[Any, ...]:
    return tuple(field for field in message.fields if field.is_required)


def _check_field(context: Context, node: Node, field: Any) -> None:
    """A required field must be set, unless it has a default; required text must not be empty."""
    of_feature = "feature_name" in node.message.DESCRIPTOR.fields_by_name
    if of_feature and field.name in (*INPUT_FIELDS, "method") and not context.encodes:
        return  # the data holds encoded features
    if of_feature and field.name == "embedding_dim":
        return  # needed where a group uses the feature; the rule on embeddings knows
    if field.name == "input" and ".sequence_encoders[" in node.path:
        return  # filled in where there is one sequence group; the rule on groups knows
    if not node.message.HasField(field.name):
        if not field.has_default_value:
            context.problem(node.at(field.name), "is required")
    elif getattr(node.message, field.name) == "" and field.name not in _MAY_BE_EMPTY:
        context.problem(node.at(field.name), "is empty")
