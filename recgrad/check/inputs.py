"""Where features get their values: expressions, and other features."""

from __future__ import annotations

from collections.abc import Iterator

from recgrad.check.rule import CHECKS, Context, Feature
from recgrad.config.proto.data_pb2 import FG_DAG
from recgrad.config.values import show

_SIDES = ("user", "item", "context", "feature", "const")
_WILDCARD = "ALL"


@CHECKS.register("feature inputs")
def check_inputs(context: Context) -> None:
    """Inputs read `side:name`; with FG_DAG, `feature:` names a feature of the config."""
    if not context.encodes:
        return
    for feature in context.features:
        for path, text in _inputs(context, feature):
            _check_input(context, feature, path, text)


def _inputs(context: Context, feature: Feature) -> Iterator[tuple[str, str]]:
    """Paths and texts of a feature's inputs; lists of them must not be empty."""
    node = feature.node
    fields = node.message.DESCRIPTOR.fields_by_name
    for name in context.trait(node, "input_fields", ()):
        if name not in fields:
            continue
        value = getattr(node.message, name)
        if fields[name].is_repeated:
            if not value:
                context.problem(node.at(name), "is required")
            yield from ((f"{node.at(name)}[{i}]", text) for i, text in enumerate(value))
        elif value:
            yield node.at(name), value


def _check_input(context: Context, feature: Feature, path: str, text: str) -> None:
    side, colon, name = text.partition(":")
    if text == _WILDCARD and path.endswith(("pkey", "skey")):
        return
    if not text or (colon and (not name or side not in _SIDES)):
        what = f"must read side:name with a side of {', '.join(_SIDES)}, got {show(text)}"
        context.problem(path, what + (context.suggest(side, _SIDES) if colon and name else ""))
        return
    if side != "feature" or not colon or context.config.data_config.fg_mode != FG_DAG:
        return
    for known in (context.feature_names, context.refused_features):
        if name in known or f"{feature.prefix}{name}" in known:
            return
    context.unknown(path, "feature", name, context.feature_names)
