"""Embedding tables: initialisers, and features that share one."""

from __future__ import annotations

import ast
import re
from typing import Any

from recgrad.check.node import Node
from recgrad.check.rule import CHECKS, Context, Feature
from recgrad.config.values import show
from recgrad.embedding.living import living_of

# Arguments of torch's initialisers beyond the tensor, as far as a table can use them.
_INITIALIZERS = {
    "uniform_": ("a", "b"),
    "normal_": ("mean", "std"),
    "trunc_normal_": ("mean", "std", "a", "b"),
    "constant_": ("val",),
    "zeros_": (),
    "ones_": (),
    "xavier_uniform_": ("gain",),
    "xavier_normal_": ("gain",),
    "kaiming_uniform_": ("a", "mode", "nonlinearity"),
    "kaiming_normal_": ("a", "mode", "nonlinearity"),
}
LIVING = ("zch", "dynamicemb")
"""Settings that give rows to ids as they come."""
_NAME = re.compile(r"(?:torch\.)?(?:nn\.init\.)?([a-z_]+)\Z")


@CHECKS.register("initialisers")
def check_initializers(context: Context) -> None:
    """init_fn names an initialiser of torch and arguments that it takes."""
    for feature in context.features:
        _check_init_fn(context, feature.node, "init_fn")
    for model in context.of_kind("model"):
        if "wide_init_fn" in model.node.message.DESCRIPTOR.fields_by_name:
            _check_init_fn(context, model.node, "wide_init_fn")
            context.ranged(model.node, "wide_embedding_dim", 1)


@CHECKS.register("living tables")
def check_living(context: Context) -> None:
    """zch and dynamicemb have settings that work, and stand where they do."""
    for feature in context.features:
        node, message = feature.node, feature.node.message
        fields = message.DESCRIPTOR.fields_by_name
        own = {name: getattr(message, name) for name in LIVING if name in fields and message.HasField(name)}
        if len(own) != 1:  # two are found by the rule of ids
            continue
        name = next(iter(own))
        try:
            living_of(own.get("zch"), own.get("dynamicemb"), max(message.embedding_dim, 1))
        except ValueError as error:
            context.problem(node.at(name), str(error))
        if message.HasField("storage"):
            context.problem(
                node.at("storage"), f"is of tables whose ids are row numbers; remove it beside {name}"
            )
        if name == "dynamicemb" and message.init_fn and own[name].HasField("initializer_args"):
            context.problem(node.at("init_fn"), "and dynamicemb.initializer_args are both set; keep one")


@CHECKS.register("shared tables")
def check_shared(context: Context) -> None:
    """Features with the same embedding_name agree on the table."""
    tables: dict[str, Feature] = {}
    for feature in context.features:
        name = feature.node.message.embedding_name
        if not name:
            continue
        first = tables.setdefault(name, feature)
        for what, left, right in _differences(first.node, feature.node):
            context.problem(
                feature.node.at("embedding_name"),
                f"cannot share {show(name)} with {show(first.name)}: {what} is {right} here and {left} there",
            )


def _check_init_fn(context: Context, node: Node, field: str) -> None:
    text = getattr(node.message, field)
    if not text:
        return
    name, *arguments = (part.strip() for part in text.split(","))
    matched = _NAME.match(name)
    short = matched.group(1) if matched else name
    if short not in _INITIALIZERS:
        context.unknown(node.at(field), "initialiser", short, _INITIALIZERS)
        return
    for argument in arguments:
        key, equals, value = (part.strip() for part in argument.partition("="))
        if not equals or not _is_literal(value):
            what = f"must read like 'nn.init.uniform_,a=-0.01,b=0.01', got {show(text)}"
            context.problem(node.at(field), what)
            return
        if key not in _INITIALIZERS[short]:
            context.unknown(node.at(field), f"argument of {short}", key, _INITIALIZERS[short])


def _is_literal(text: str) -> bool:
    if len(text) > 60:
        return False
    try:
        return isinstance(ast.literal_eval(text), (int, float, str))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def _differences(first: Node, second: Node) -> list[tuple[str, Any, Any]]:
    """What keeps two features from sharing a table."""
    pairs = [("embedding_dim", first.message.embedding_dim, second.message.embedding_dim)]
    rows = _rows(first.message), _rows(second.message)
    if None not in rows:
        pairs.append(("the number of rows", *rows))
    pairs += [
        (name, getattr(first.message, name) or "unset", getattr(second.message, name) or "unset")
        for name in ("data_type", "init_fn")
    ]
    for name in ("zch", "dynamicemb"):
        fields = [message.DESCRIPTOR.fields_by_name for message in (first.message, second.message)]
        if all(name in own for own in fields):
            pairs.append((name, _text(first.message, name), _text(second.message, name)))
    return [pair for pair in pairs if pair[1] != pair[2]]


def _text(message: Any, name: str) -> str:
    own = getattr(message, name)
    return " ".join(str(own).split()) or "{}" if message.HasField(name) else "unset"


def _rows(message: Any) -> int | None:
    """The rows of a feature's table, where the config alone says them."""
    fields = message.DESCRIPTOR.fields_by_name
    for name in ("num_buckets", "hash_bucket_size"):
        if name in fields and message.HasField(name):
            return int(getattr(message, name))
    if "boundaries" in fields and message.boundaries:
        return len(message.boundaries) + 1
    return None
