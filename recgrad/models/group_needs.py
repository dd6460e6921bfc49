"""Which feature groups a model reads: what its class says of them, what is wrong with those it is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from recgrad.errors import nearest
from recgrad.limits import Rule, limits_of

SEQUENCE, JAGGED = "SEQUENCE", "JAGGED_SEQUENCE"
_TAKEN = {"ROWS": ("DEEP", SEQUENCE), "ANY": ("DEEP", SEQUENCE, JAGGED)}
GroupType = Literal["DEEP", "WIDE", "SEQUENCE", "ROWS", "ANY"]
"""What a model reads a group as; ROWS is DEEP, or SEQUENCE with features of rows alone; ANY is DEEP or a
sequence."""


@dataclass(frozen=True)
class GroupNeeds:
    """The groups that a model finds by itself.

    Attributes:
        needed: types of the groups that must be there, by name.
        optional: types of those that may be there.
        first: the type of the first group, whose name is free; settings name all others.
        alone: the type of a single group, which may have any name; without `needed` there must be just one.
    """

    needed: Mapping[str, GroupType] = field(default_factory=dict)
    optional: Mapping[str, GroupType] = field(default_factory=dict)
    alone: GroupType | None = None
    first: GroupType | None = None


ONE_DEEP = GroupNeeds(alone="DEEP")
"""One DEEP group of any name."""


@dataclass(frozen=True)
class Reads(Rule):
    """A setting that names a group of a type."""

    type: GroupType


DeepInput = Annotated[str, Reads("DEEP")]
SequenceInput = Annotated[str, Reads("SEQUENCE")]


def group_problems(
    name: str, model: Any, settings: Mapping[str, Any], groups: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """What is wrong with the groups that a model is given, as (path in model_config, what is wrong).

    Args:
        name: what the config calls the model.
        model: its class.
        settings: of its message.
        groups: names and types.
    """
    needs = needs_of(model, settings)
    if needs is not None and needs.first is None:
        yield from _own(name, needs, groups)
        return
    types = dict(groups)
    read = list(_named(model, settings))
    if needs is not None and needs.first is not None and groups:
        read.append(("", groups[0][0], needs.first))
    for place, group, kind in read:
        if group in types:
            yield from _of_type(name, groups, group, kind)
        elif group:
            known = nearest(group, types) or f" (has: {', '.join(types)})"
            yield f"{name}.{place}", f"no feature group '{group}'{known}"
    for i, (group, _) in enumerate(groups):
        if read and group not in [other for _, other, _ in read]:
            what = f"no tower of {name} reads the group '{group}'; name it, or remove it"
            yield f"feature_groups[{i}].group_name", what


def needs_of(model: Any, settings: Mapping[str, Any]) -> GroupNeeds | None:
    """The groups that a class finds by itself; a class_path may name anything."""
    found: GroupNeeds | None = model.needs(settings) if hasattr(model, "needs") else None
    return found


def _named(model: Any, settings: Mapping[str, Any]) -> Iterator[tuple[str, str, GroupType]]:
    """Place, group and type of every setting that names a group."""
    for key, limit in limits_of(model).items():
        for place, rule, value in limit.parts(settings.get(key)):
            if isinstance(rule, Reads):
                yield key + place, value, rule.type


def _own(name: str, needs: GroupNeeds, groups: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    names = [group for group, _ in groups]
    if needs.alone is not None and len(groups) == 1:
        yield from _of_type(name, groups, names[0], needs.alone)
        return
    known = {**needs.needed, **needs.optional}
    if not known:
        yield "feature_groups", f"{name} takes one group, got {_listed(names)}"
        return
    for i, (group, _) in enumerate(groups):
        if group in known:
            yield from _of_type(name, groups, group, known[group])
        else:
            what = f"{name} does not read a group '{group}', only {_listed(known)}"
            yield f"feature_groups[{i}].group_name", what
    for group, kind in needs.needed.items():
        if group not in names:
            type = "DEEP" if kind in _TAKEN else kind
            yield "feature_groups", f"{name} needs a group '{group}' of type {type}"


def _of_type(
    name: str, groups: Sequence[tuple[str, str]], group: str, kind: GroupType
) -> Iterator[tuple[str, str]]:
    i, got = next((i, kind) for i, (other, kind) in enumerate(groups) if other == group)
    if got in _TAKEN.get(kind, ()):
        return
    kind = "DEEP" if kind in _TAKEN else kind
    # Both kinds of sequences keep positions apart, and none of them is padded.
    if (SEQUENCE if got == JAGGED else got) != kind:
        yield f"feature_groups[{i}].group_type", f"{name} needs the group '{group}' to be {kind}, got {got}"


def _listed(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names)
