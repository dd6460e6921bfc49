"""Feature groups: what they name, and what their type allows."""

from __future__ import annotations

from recgrad.check.features import makes_ids
from recgrad.check.node import Node
from recgrad.check.rule import CHECKS, Context
from recgrad.config.proto.model_pb2 import DEEP, WIDE
from recgrad.config.values import show
from recgrad.models.group_needs import needs_of


@CHECKS.register("feature groups")
def check_groups(context: Context) -> None:
    """Groups have names of their own, features that exist, and a type that fits them."""
    nodes = list(context.of("FeatureGroupConfig"))
    for node in context.of("ModelConfig"):
        if not nodes:
            context.problem(node.path, "feature_groups is missing; a model needs at least one")
    seen: set[str] = set()
    for node in nodes:
        group = node.message
        if group.group_name in seen:
            context.problem(
                node.at("group_name"), f"two groups are called {show(group.group_name)}; rename one"
            )
        seen.add(group.group_name)
        if not group.feature_names and not group.sequence_groups:
            context.problem(node.path, "has no features; list them in feature_names")
        _check_features(context, node)
        if group.group_type == DEEP:
            _check_sequences(context, node)
        else:
            _check_other_types(context, node)


def _check_features(context: Context, node: Node) -> None:
    """Names in feature_names are features, each once."""
    seen: set[str] = set()
    for i, name in enumerate(node.message.feature_names):
        path = f"{node.at('feature_names')}[{i}]"
        if name in seen:
            context.problem(path, f"feature {show(name)} is listed twice; keep one")
        elif name not in context.feature_names and name not in context.refused_features:
            context.unknown(path, "feature", name, context.feature_names)
        seen.add(name)


def _check_sequences(context: Context, node: Node) -> None:
    """Sequence groups of a DEEP group, and the encoders that read them."""
    group = node.message
    names: dict[str, int] = {}
    for i, sequence in enumerate(group.sequence_groups):
        inner = Node(f"{node.at('sequence_groups')}[{i}]", sequence)
        name = sequence.group_name or group.group_name
        if name in names:
            context.problem(inner.path, f"two sequence groups are called {show(name)}; rename one")
        names[name] = i
        if not sequence.feature_names:
            context.problem(inner.path, "has no features; list them in feature_names")
        _check_features(context, inner)
        _check_has_sequence(context, inner)
    read: set[str] = set()
    for i, encoder in enumerate(group.sequence_encoders):
        choice = encoder.WhichOneof("seq_module")
        if choice is None:
            continue
        name = getattr(encoder, choice).input
        if not name and len(names) == 1:
            name = next(iter(names))  # there is nothing else to read
        elif not name:
            path = f"{node.at('sequence_encoders')}[{i}].{choice}.input"
            listed = ", ".join(map(show, names)) or "none"
            context.problem(path, f"is required unless there is one sequence group (there are: {listed})")
        read.add(name)
        if name and name not in names:
            path = f"{node.at('sequence_encoders')}[{i}].{choice}.input"
            context.unknown(path, "sequence group", name, names)
    for name, i in names.items():
        if name and name not in read:
            path = f"{node.at('sequence_groups')}[{i}]"
            context.problem(
                path, f"no sequence_encoders entry reads {show(name)}; add one, or remove the group"
            )


def _check_other_types(context: Context, node: Node) -> None:
    """WIDE groups hold ids of rows; SEQUENCE groups hold a sequence."""
    group = node.message
    if group.sequence_groups or group.sequence_encoders:
        context.problem(node.path, "sequence_groups and sequence_encoders belong in DEEP groups only")
    if group.group_type != WIDE:
        if not _is_rows(context, group.group_name):
            _check_has_sequence(context, node)
        return
    for i, name in enumerate(group.feature_names):
        feature = context.feature_names.get(name)
        path = f"{node.at('feature_names')}[{i}]"
        if feature is None:
            continue
        if feature.sequence:
            context.problem(path, f"sequence feature {show(name)} cannot be in a WIDE group")
        elif not makes_ids(context, feature.node):
            context.problem(
                path, f"feature {show(name)} has no ids, so no WIDE group can hold it; give it boundaries"
            )


def _is_rows(context: Context, group: str) -> bool:
    """Whether the model reads a group of this name as features of rows, whatever its type."""
    needs = [needs_of(model.cls, model.settings) for model in context.of_kind("model") if model.cls]
    return any(need is not None and {**need.needed, **need.optional}.get(group) == "ROWS" for need in needs)


def _check_has_sequence(context: Context, node: Node) -> None:
    """A sequence group names at least one sequence feature."""
    known = [context.feature_names.get(name) for name in node.message.feature_names]
    if known and all(feature is not None and not feature.sequence for feature in known):
        context.problem(node.path, "has no sequence feature; a sequence group needs at least one")
