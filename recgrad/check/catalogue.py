"""Evaluation over a whole catalogue: what its settings need of each other."""

from __future__ import annotations

import math
from collections.abc import Iterator

from recgrad.check.node import Node
from recgrad.check.rule import CHECKS, Context
from recgrad.config.messages import chosen
from recgrad.retrieval.boost import NOT_EUCLID
from recgrad.retrieval.measures import BETTER_HIGH, OF_LISTS

PREFIX = "catalogue_"
DEFAULT_TOP_K = 20


@CHECKS.register("catalogue evaluation")
def check_catalogue(context: Context) -> None:
    """The files and columns of a catalogue evaluation are named, and every setting has an effect."""
    for node in context.of("CatalogueEval"):
        for field in ("item_input_path", "item_id_field"):
            if not getattr(node.message, field):
                context.problem(node.at(field), "is required")
        if not context.config.eval_input_path:
            context.problem(node.path, "ranks items for the rows of eval_input_path, which is empty; set it")
        for i, k in enumerate(node.message.top_k):
            if k < 1:
                context.problem(f"{node.at('top_k')}[{i}]", f"must be at least 1, got {k}")
        _check_seen(context, node)
        if node.message.HasField("boost"):
            _check_boost(context, node)


def _check_seen(context: Context, node: Node) -> None:
    message = node.message
    masks = message.user_id_field or message.seen_field
    if message.HasField("mask_seen") and message.mask_seen and not masks:
        context.problem(
            node.at("mask_seen"), "needs user_id_field or seen_field, which say who has seen what"
        )
    if message.seen_field and not message.mask_seen:
        context.problem(node.at("seen_field"), "has no effect with mask_seen: false; remove one of them")


def _check_boost(context: Context, node: Node) -> None:
    path, boost = node.at("boost"), node.message.boost
    if not boost.field:
        context.problem(f"{path}.field", "is required: the items' column of numbers")
    if not math.isfinite(boost.log_weight) or boost.log_weight == 0:
        context.problem(f"{path}.log_weight", f"must be a number other than 0, got {boost.log_weight:g}")
    choice = chosen(context.config.model_config, "model")
    similarity = None if choice is None else choice[1].DESCRIPTOR.fields_by_name.get("similarity")
    if choice is not None and similarity is not None and similarity.enum_type is not None:
        name = similarity.enum_type.values_by_number[choice[1].similarity].name
        if name == "EUCLID":
            context.problem(path, NOT_EUCLID)


def catalogue_metrics(context: Context) -> Iterator[str]:
    """The names that an evaluation over a catalogue gives its metrics."""
    for node in context.of("CatalogueEval"):
        for k in sorted(set(node.message.top_k)) or [DEFAULT_TOP_K]:
            yield from (f"{PREFIX}{name}@{k}" for name in (*BETTER_HIGH, *OF_LISTS))
