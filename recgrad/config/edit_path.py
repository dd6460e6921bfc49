"""Paths that name fields of a config, as edits write them.

```
train_config.num_steps                               a field
feature_configs[0].raw_feature.boundaries            an item by number; [-1] is the last
feature_configs[1:3], feature_configs[:]             items from 1 up to 3; all items
feature_configs[feature_name=cat_1].id_feature       items that meet a condition: = > < >= <=
feature_configs[+]                                   a new item at the end
feature_configs[0].id_feature.vocab_dict[word]       an entry of a map
```
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from recgrad.config.values import show


class PathError(ValueError):
    """A path that is not written as paths are; the text says how."""


@dataclass(frozen=True, slots=True)
class Index:
    """One item by number."""

    number: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Items from `start` up to `stop`."""

    start: int | None
    stop: int | None


@dataclass(frozen=True, slots=True)
class Condition:
    """Items whose field compares so with a value."""

    path: tuple[str, ...]
    operator: str
    value: str


@dataclass(frozen=True, slots=True)
class Append:
    """A new item at the end."""


@dataclass(frozen=True, slots=True)
class Key:
    """A map's entry, or text that makes no other selector."""

    text: str


Selector = Index | Slice | Condition | Append | Key


@dataclass(frozen=True, slots=True)
class Step:
    """A field's name, and which of its items are meant; None is the field itself."""

    name: str
    selector: Selector | None = None


MAX_LENGTH = 1000
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}\Z")
_SLICE = re.compile(r"(-?[0-9]{1,9})?:(-?[0-9]{1,9})?\Z")
_CONDITION = re.compile(r"([A-Za-z_][\w.]*)\s*(>=|<=|=|>|<)(.*)\Z", re.DOTALL)


def parse_path(path: str) -> tuple[Step, ...]:
    """The steps of a path.

    Raises:
        PathError: it is not written as paths are.
    """
    if len(path) > MAX_LENGTH:
        raise PathError(f"is longer than {MAX_LENGTH} characters")
    return tuple(_step(part) for part in _split(path))


def _split(path: str) -> list[str]:
    """Parts between the dots that stand outside brackets."""
    parts, start, inside = [], 0, False
    for i, character in enumerate(path):
        if character == "[" and not inside:
            inside = True
        elif character == "]":
            inside = False
        elif character == "." and not inside:
            parts.append(path[start:i])
            start = i + 1
    if inside:
        raise PathError("a '[' is not closed")
    return [*parts, path[start:]]


def _step(part: str) -> Step:
    part = part.strip()
    name, bracket, rest = part.partition("[")
    name = name.strip()
    if not name.isidentifier():
        raise PathError(f"{show(part)} is not a field name" if part else "a field name is missing")
    if not bracket:
        return Step(name)
    if not rest.endswith("]") or "]" in rest[:-1]:
        raise PathError(f"{show(part)}: one pair of brackets belongs at the end of a name")
    return Step(name, _selector(rest[:-1].strip()))


def _selector(text: str) -> Selector:
    if not text:
        raise PathError("'[]' is empty; write [0], [1:3], [:], [name=value] or [+]")
    if text == "+":
        return Append()
    if _NUMBER.match(text):
        return Index(int(text))
    bounds = _SLICE.match(text)
    if bounds:
        start, stop = bounds.groups()
        return Slice(None if start is None else int(start), None if stop is None else int(stop))
    condition = _CONDITION.match(text)
    if condition:
        path, operator, value = condition.groups()
        return Condition(tuple(path.split(".")), operator, _unquote(value.strip()))
    return Key(_unquote(text))


def _unquote(text: str) -> str:
    """Text without the quotes around it, if there are any."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text
