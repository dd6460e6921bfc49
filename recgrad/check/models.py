"""Models and the feature groups they need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from recgrad.check.rule import CHECKS, Context, Node
from recgrad.config.proto.model_pb2 import DEEP, JAGGED_SEQUENCE, SEQUENCE, WIDE, FeatureGroupType
from recgrad.config.values import show

# Groups that a model finds by name: needed, then optional.
_NAMED: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "deepfm": ({"wide": WIDE, "deep": DEEP}, {"fm": DEEP}),
    "wide_and_deep": ({"wide": WIDE, "deep": DEEP}, {}),
    "xdeepfm": ({"wide": WIDE, "deep": DEEP}, {}),
    "pepnet": ({"all": DEEP}, {"domain": DEEP, "uia": DEEP}),
}
# Models that take one DEEP group of any name.
_ONE_GROUP = frozenset(
    {
        "mask_net",
        "dcn_v1",
        "dcn_v2",
        "simple_multi_task",
        "mmoe",
        "dbmtl",
        "ple",
        "dc2vr",
        "rocket_launching",
    }
)
_SPARSE_DENSE = frozenset({"dlrm", "wukong"})


@CHECKS.register("model groups")
def check_model_groups(context: Context) -> None:
    """A model has the groups it needs, of the right types, and no group without use."""
    for node in context.of("ModelConfig"):
        model = context.chosen(node, "model")
        if model is None or not node.message.feature_groups:
            continue
        name = str(node.message.WhichOneof("model"))
        groups = {group.group_name: group for group in node.message.feature_groups}
        _check_widths(context, node, name)
        if name in _NAMED:
            _check_named(context, node, name, *_NAMED[name])
        elif name in _SPARSE_DENSE:
            _check_sparse_dense(context, node, model, name)
        elif name in _ONE_GROUP:
            if len(groups) > 1:
                listed = ", ".join(map(show, groups))
                context.problem(node.at("feature_groups"), f"{name} takes one group, got {listed}")
            else:
                _check_type(context, node, 0, DEEP, name)
        elif name == "tdm":
            if not any(group.group_type == SEQUENCE for group in groups.values()):
                context.problem(node.at("feature_groups"), "tdm needs a group of type SEQUENCE")
        else:
            _check_inputs(context, node, model, name)


@CHECKS.register("model layers")
def check_layers(context: Context) -> None:
    """Models of repeated parts have at least one of them."""
    needed = {
        "MultiTower": ("towers",),
        "WuKong": ("wukong_layers",),
        "PLE": ("extraction_networks",),
        "CIN": ("cin_layer_size",),
    }
    for kind, fields in needed.items():
        for node in context.of(kind):
            for field in fields:
                if not getattr(node.message, field):
                    context.problem(node.path, f"{field} is empty")
    for node in context.of("MultiTowerDIN"):
        if not node.message.towers and not node.message.din_towers:
            context.problem(node.path, "towers and din_towers are both empty")
    for node in context.of("SASRec", "NextItemHSTU"):
        if context.config.data_config.WhichOneof("sampler") != "next_item_sampler":
            context.problem(node.path, "has no items to compare; set data_config.next_item_sampler")
    for node in context.of("DSSM", "DSSMV2", "DAT", "MIND"):
        context.ranged(node, "temperature", 0, above=True)
        context.ranged(node, "output_dim", 0)
        _check_negatives(context, node)


def _check_negatives(context: Context, node: Node) -> None:
    """A two-tower model has negatives, of one kind."""
    sampler = context.config.data_config.WhichOneof("sampler")
    if not node.message.in_batch_negative:
        if sampler is None:
            context.problem(
                node.path, "has no negatives; set in_batch_negative, or a negative_sampler in data_config"
            )
        elif sampler == "in_batch_sampler":
            context.problem("data_config.in_batch_sampler", f"needs in_batch_negative: true in {node.path}")
    elif sampler not in (None, "in_batch_sampler"):
        what = "is not used: with in_batch_negative the items of other rows are the negatives"
        context.hint(f"data_config.{sampler}", what)


def _check_named(
    context: Context, node: Node, name: str, needed: dict[str, int], optional: dict[str, int]
) -> None:
    """Groups that the model finds by name."""
    known = {**needed, **optional}
    for i, group in enumerate(node.message.feature_groups):
        if group.group_name in known:
            _check_type(context, node, i, known[group.group_name], name)
        else:
            listed = ", ".join(map(show, known))
            path = f"{node.at('feature_groups')}[{i}].group_name"
            context.problem(path, f"{name} does not read a group {show(group.group_name)}, only {listed}")
    present = {group.group_name for group in node.message.feature_groups}
    for group, kind in needed.items():
        if group not in present:
            what = f"{name} needs a group '{group}' of type {FeatureGroupType.Name(kind)}"  # type: ignore[arg-type]
            context.problem(node.at("feature_groups"), what)


def _check_sparse_dense(context: Context, node: Node, model: Node, name: str) -> None:
    """One group of any name, or `sparse` with or without `dense`."""
    groups = node.message.feature_groups
    if len(groups) > 1:
        _check_named(context, node, name, {"sparse": DEEP}, {"dense": DEEP})
    else:
        _check_type(context, node, 0, DEEP, name)
    has_dense = len(groups) > 1 and any(group.group_name == "dense" for group in groups)
    has_mlp = model.message.HasField("dense_mlp")
    if has_dense and not has_mlp:
        context.problem(model.path, "the group 'dense' needs a dense_mlp")
    elif has_mlp and not has_dense:
        context.problem(model.at("dense_mlp"), "needs a group 'dense' beside the group 'sparse'")


def _check_inputs(context: Context, node: Node, model: Node, name: str) -> None:
    """Groups that the model's towers name, each of the type the tower reads."""
    groups = {group.group_name: i for i, group in enumerate(node.message.feature_groups)}
    inputs = list(_tower_inputs(model))
    for path, group, kind in inputs:
        if group in groups:
            _check_type(context, node, groups[group], kind, name)
        elif group:
            context.unknown(path, "feature group", group, groups)
    read = {group for _, group, _ in inputs}
    for group, i in groups.items():
        if inputs and group not in read:
            path = f"{node.at('feature_groups')}[{i}].group_name"
            context.problem(path, f"no tower of {name} reads the group {show(group)}; name it, or remove it")


def _tower_inputs(model: Node) -> Iterator[tuple[str, str, int]]:
    """Path, group and group type of every tower's input."""
    message: Any = model.message
    for field in ("towers", "din_towers"):
        for i, tower in enumerate(getattr(message, field, ())):
            yield f"{model.at(field)}[{i}].input", tower.input, DEEP if field == "towers" else SEQUENCE
    for field, kind in (("input", SEQUENCE), ("time_input", SEQUENCE), ("request_time_input", DEEP)):
        if field in message.DESCRIPTOR.fields_by_name and getattr(message, field):
            yield model.at(field), getattr(message, field), kind
    for field in ("user_tower", "item_tower"):
        if field not in message.DESCRIPTOR.fields_by_name or not message.HasField(field):
            continue
        tower = getattr(message, field)
        for name in ("input", "history_input", "augment_input"):
            if name in tower.DESCRIPTOR.fields_by_name:
                kind = SEQUENCE if name == "history_input" else DEEP
                yield f"{model.at(field)}.{name}", getattr(tower, name), kind


def _check_widths(context: Context, node: Node, name: str) -> None:
    """Fields that are multiplied with each other are equally wide."""
    groups = {group.group_name: group for group in node.message.feature_groups}
    if name == "deepfm":
        group = groups.get("fm") or groups.get("deep")
    elif name in _SPARSE_DENSE:
        group = next(iter(groups.values())) if len(groups) == 1 else groups.get("sparse")
    else:
        return
    widths: dict[int, str] = {}
    for feature in group.feature_names if group is not None else ():
        known = context.feature_names.get(feature)
        width = None if known is None or known.sequence else _width(known.node.message)
        if width is not None:
            widths.setdefault(width, feature)
    if group is not None and len(widths) > 1:
        listed = ", ".join(f"{show(feature)} {width}" for width, feature in sorted(widths.items()))
        remedy = "give them one embedding_dim"
        if group.group_name == "deep":
            remedy += ", or list those that have one in a group 'fm'"
        path = f"{node.at('feature_groups')}[{list(groups).index(group.group_name)}]"
        context.problem(path, f"{name} needs features of equal width in it, got {listed}; {remedy}")


def _width(message: Any) -> int | None:
    """The columns of a feature of rows, where the config alone says them."""
    if (
        message.DESCRIPTOR.name == "RawFeature"
        and not message.boundaries
        and not message.WhichOneof("dense_emb")
    ):
        return int(message.value_dim)
    return int(message.embedding_dim) or None


def _check_type(context: Context, node: Node, i: int, kind: int, name: str) -> None:
    group = node.message.feature_groups[i]
    # Both kinds keep positions apart, and none of them is padded.
    got = SEQUENCE if group.group_type == JAGGED_SEQUENCE else group.group_type
    if got != kind:
        wanted, got = FeatureGroupType.Name(kind), FeatureGroupType.Name(group.group_type)  # type: ignore[arg-type]
        path = f"{node.at('feature_groups')}[{i}].group_type"
        context.problem(path, f"{name} needs the group {show(group.group_name)} to be {wanted}, got {got}")
