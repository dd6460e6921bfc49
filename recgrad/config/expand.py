"""What a config says in short, said in full: defaults of feature kinds, and patterns in feature groups.

    feature_defaults { id_feature { embedding_dim: 16 } }          every id_feature without an embedding_dim
    feature_names: ["*", "!tag"]                                   all that the group can hold, but for one
    feature_names: ["user:*", "raw_feature:price_*"]               by side of the expression, by kind

A config that uses neither stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from recgrad.config.fill import is_map
from recgrad.config.id_sources import BOUNDARIES, ID_SOURCES, id_sources
from recgrad.config.locations import Locations
from recgrad.config.messages import chosen
from recgrad.config.names import joiner_of
from recgrad.config.proto.model_pb2 import DEEP, WIDE, FeatureGroupType
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.config.values import show
from recgrad.errors import ConfigError, Problem, nearest

_WILD = "*?["
_OUT = "!"
_NAME = "*"
_ONEOF = "feature"
_SEQUENCE = "sequence_feature"
_EXCLUSIVE = ((*ID_SOURCES, BOUNDARIES), ("autodis", "mlp"))
"""Fields of which a feature sets one: where it has set any, none of the others comes from the defaults."""


@dataclass(frozen=True)
class NamedFeature:
    """A feature as patterns see it.

    Attributes:
        name: as groups name it.
        kind: its member of the oneof; members of a sequence_feature have `sequence_` before it.
        side: what stands before the colon of its (first) expression.
        sequence: one value a position, not a row.
        ids: it makes ids.
        stub: it is computed for other features only.
    """

    name: str
    kind: str
    side: str
    sequence: bool
    ids: bool
    stub: bool


def expand_config(config: PipelineConfig, locations: Locations | None = None) -> PipelineConfig:
    """The config without defaults and patterns; the same object where it has none.

    Args:
        config: not changed.
        locations: learns from which lines the fields come.

    Raises:
        ConfigError: patterns that match nothing, defaults that no feature takes, all at once.
    """
    if not config.feature_defaults and not any(_is_pattern(name) for name in _group_entries(config)):
        return config
    expanded = PipelineConfig()
    expanded.CopyFrom(config)
    problems: list[tuple[str, str]] = []
    origins = _apply_defaults(expanded, problems)
    expanded.ClearField("feature_defaults")
    origins |= _expand_groups(expanded, problems)
    locations = locations or Locations()
    if problems:
        raise ConfigError([Problem(locations.where(path), what) for path, what in problems])
    locations.move(origins)
    return expanded


def _apply_defaults(config: PipelineConfig, problems: list[tuple[str, str]]) -> dict[str, str]:
    """Fill features from the defaults of their kinds; returns where each field comes from."""
    defaults: dict[str, tuple[str, Any]] = {}
    for i, message in enumerate(config.feature_defaults):
        found = chosen(message, _ONEOF)
        path = f"feature_defaults[{i}]"
        if found is None or found[0] == _SEQUENCE:
            problems.append((path, "names no kind of feature; write one in it, such as id_feature { … }"))
            continue
        kind, default = found
        if kind in defaults:
            problems.append((f"{path}.{kind}", f"{kind} has defaults already; join the two"))
        elif default.HasField("feature_name"):
            what = "is a feature's own, so no default; leave it out"
            problems.append((f"{path}.{kind}.feature_name", what))
        else:
            defaults[kind] = (f"{path}.{kind}", default)
    origins: dict[str, str] = {}
    used: set[str] = set()
    for path, kind, feature in _features(config):
        if kind in defaults:
            used.add(kind)
            origin, default = defaults[kind]
            for name in _fill(feature, default):
                origins[f"{path}.{name}"] = f"{origin}.{name}"
    for kind, (path, _) in defaults.items():
        if kind not in used:
            problems.append((path, f"there is no {kind} to take them; remove them"))
    return origins


def _features(config: PipelineConfig) -> Iterator[tuple[str, str, Any]]:
    """Path, kind and message of every feature, of members of sequences too."""
    for i, outer in enumerate(config.feature_configs):
        found = chosen(outer, _ONEOF)
        if found is None:
            continue
        kind, message = found
        path = f"feature_configs[{i}].{kind}"
        if kind != _SEQUENCE:
            yield path, kind, message
            continue
        for j, member in enumerate(message.features):
            inner = chosen(member, _ONEOF)
            if inner is not None:
                yield f"{path}.features[{j}].{inner[0]}", *inner


def _fill(message: Any, default: Any) -> list[str]:
    """Set what a feature leaves unset; returns the fields."""
    taken = {name for names in _EXCLUSIVE if _any_set(message, names) for name in names}
    filled = []
    for field, value in default.ListFields():
        name = field.name
        if name in taken or _is_set(message, field):
            continue
        if field.is_repeated:
            if is_map(field) and field.message_type.fields_by_name["value"].message_type is None:
                getattr(message, name).update(value)
            else:
                getattr(message, name).MergeFrom(value)
        elif field.message_type is not None:
            getattr(message, name).CopyFrom(value)
        else:
            if name == "expression":
                value = value.replace(_NAME, message.feature_name)
            setattr(message, name, value)
        filled.append(name)
    return filled


def _is_set(message: Any, field: Any) -> bool:
    return bool(len(getattr(message, field.name)) if field.is_repeated else message.HasField(field.name))


def _any_set(message: Any, names: Sequence[str]) -> bool:
    fields = message.DESCRIPTOR.fields_by_name
    return any(name in fields and _is_set(message, fields[name]) for name in names)


def _group_entries(config: PipelineConfig) -> Iterator[str]:
    for group in config.model_config.feature_groups:
        yield from group.feature_names
        for sequence in group.sequence_groups:
            yield from sequence.feature_names


def _is_pattern(entry: str) -> bool:
    return entry.startswith(_OUT) or any(sign in entry for sign in _WILD)


def _expand_groups(config: PipelineConfig, problems: list[tuple[str, str]]) -> dict[str, str]:
    """Replace patterns by the names that they match; returns where each name comes from."""
    known = list(named_features(config))
    origins: dict[str, str] = {}
    for i, group in enumerate(config.model_config.feature_groups):
        path = f"model_config.feature_groups[{i}]"
        kind = f"{FeatureGroupType.Name(group.group_type)} group"
        rows = [feature for feature in known if not feature.sequence]
        holds = {DEEP: rows, WIDE: [feature for feature in rows if feature.ids]}
        sequences = [feature for feature in known if feature.sequence]
        places: list[tuple[str, Any, str, list[NamedFeature]]] = [
            (path, group, kind, holds.get(group.group_type, sequences))
        ]
        places += [
            (f"{path}.sequence_groups[{j}]", inner, "sequence group", sequences)
            for j, inner in enumerate(group.sequence_groups)
        ]
        for where, message, what, candidates in places:
            entries = list(message.feature_names)
            if not any(map(_is_pattern, entries)):
                continue
            names, sources = _match(entries, candidates, f"{where}.feature_names", what, problems)
            del message.feature_names[:]
            message.feature_names.extend(names)
            for new, old in enumerate(sources):
                origins[f"{where}.feature_names[{new}]"] = f"{where}.feature_names[{old}]"
    return origins


def named_features(config: PipelineConfig) -> Iterator[NamedFeature]:
    """The features that a group may name, in the order of the config."""
    joiner = joiner_of(config)
    for outer in config.feature_configs:
        found = chosen(outer, _ONEOF)
        if found is None:
            continue
        kind, message = found
        if kind != _SEQUENCE:
            yield _named(message.feature_name, kind, message)
            continue
        for member in message.features:
            inner = chosen(member, _ONEOF)
            if inner is not None:
                name = message.sequence_name + joiner + inner[1].feature_name
                yield _named(name, f"sequence_{inner[0]}", inner[1])


def _named(name: str, kind: str, message: Any) -> NamedFeature:
    stub = bool(getattr(message, "stub_type", False))
    return NamedFeature(
        name, kind, _side(message), kind.startswith("sequence_"), bool(id_sources(message)), stub
    )


def _side(message: Any) -> str:
    """What the first expression of a feature begins with: `user` of `user:age`."""
    for name in ("expression", "variables", "map", "query", "user_info", "nested_map"):
        value: Any = getattr(message, name, "")
        first = value if isinstance(value, str) else next(iter(value), "")
        if ":" in first:
            return first.partition(":")[0].strip()
    return ""


def _match(
    entries: Sequence[str],
    candidates: Sequence[NamedFeature],
    path: str,
    what: str,
    problems: list[tuple[str, str]],
) -> tuple[list[str], list[int]]:
    """The names that the entries of a group mean, each with the number of its entry."""
    taken: dict[str, int] = {}
    named = {entry for entry in entries if not _is_pattern(entry)}
    usable = [feature for feature in candidates if not feature.stub]
    for i, entry in enumerate(entries):
        if not _is_pattern(entry):
            taken[entry] = i
        elif not entry.startswith(_OUT):
            found = [feature.name for feature in usable if _matches(entry, feature)]
            if not found:
                known = {feature.name for feature in usable}
                hint = nearest(entry.strip(_WILD), known)
                problems.append(
                    (f"{path}[{i}]", f"{show(entry)} matches no feature that a {what} can hold{hint}")
                )
            for name in found:
                taken.setdefault(name, i)
    left_out: set[str] = set()
    for i, entry in enumerate(entries):
        if entry.startswith(_OUT):
            found = [
                feature.name
                for feature in usable
                if feature.name in taken and feature.name not in named and _matches(entry[1:], feature)
            ]
            if not found:
                hint = nearest(entry[1:], taken)
                problems.append(
                    (f"{path}[{i}]", f"{show(entry)} leaves out nothing that the patterns take{hint}")
                )
            left_out.update(found)
    kept: Mapping[str, int] = {name: i for name, i in taken.items() if name not in left_out}
    return list(kept), list(kept.values())


def _matches(pattern: str, feature: NamedFeature) -> bool:
    """Whether a pattern, by name or by `kind:name` or `side:name`, takes a feature."""
    where, colon, name = pattern.rpartition(":")
    if colon and where not in (feature.kind, feature.side):
        return False
    return fnmatchcase(feature.name, name)
