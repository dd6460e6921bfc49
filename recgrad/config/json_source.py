"""Reading JSON configs, with the place of every field."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

from google.protobuf.message import Message

from recgrad.config.fill import field_named, fill, is_map, join
from recgrad.config.locations import REPEATED, Locations
from recgrad.config.values import MessageType, show
from recgrad.errors import ConfigError, Problem

MAX_PROBLEMS = 20

_TOKEN = re.compile(r'"(?P<string>[^"\\]*(?:\\.[^"\\]*)*)"|(?P<mark>[{}\[\]:,])', re.DOTALL)


class _DuplicateKeyError(ValueError):
    """A key that one JSON object holds twice."""


def parse_json(text: str, message: Message, source: str) -> Locations:
    """Fill `message` from JSON; returns where its fields stand.

    Field names may be the schema's own or lowerCamelCase, enums names or numbers.

    Raises:
        ConfigError: syntax, unknown names and unfit values, with their lines.
    """
    repeated: list[str] = []
    tree = load_json(text, source, repeated)
    if not isinstance(tree, dict):
        raise ConfigError([Problem(source, f"a config is a JSON object, not {show(tree)}")])
    locations = Locations(source, text, _Scanner(text, message.DESCRIPTOR).run)
    locations.repeated += [f"{source}: key {show(key)} {REPEATED}" for key in repeated[:MAX_PROBLEMS]]
    problems: list[Problem] = []

    def report(path: str, what: str) -> None:
        if len(problems) < MAX_PROBLEMS:
            problems.append(Problem(locations.where(path), what))

    fill(message, tree, report)
    if problems:
        raise ConfigError(problems)
    return locations


def load_json(text: str, source: str, repeated: list[str] | None = None) -> Any:
    """The value that JSON text stands for.

    Keys of numbers and texts that an object holds twice are added to `repeated`, and the last one counts;
    without such a list they are an error.

    Raises:
        ConfigError: not JSON, a key twice in one object, or nested too deep.
    """
    try:
        return json.loads(text, object_pairs_hook=partial(_unique, repeated=repeated), parse_int=_parse_int)
    except json.JSONDecodeError as error:
        locations = Locations(source, text)
        what = f"{error.msg}\n{locations.excerpt(error.pos)}"
        raise ConfigError([Problem(locations.at(error.pos), what)]) from None
    except _DuplicateKeyError as error:
        raise ConfigError([Problem(source, str(error))]) from None
    except RecursionError:
        raise ConfigError([Problem(source, "the JSON is nested too deep")]) from None
    except ValueError as error:
        raise ConfigError([Problem(source, f"cannot read this JSON: {str(error)[:200]}")]) from None


def _unique(pairs: list[tuple[str, Any]], repeated: list[str] | None) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) == len(pairs):
        return tree
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            structured = any(isinstance(one, (dict, list)) for one in (value, seen[key]))
            if repeated is None or structured:
                raise _DuplicateKeyError(f"key {show(key)} is given twice in one JSON object; keep one")
            repeated.append(key)
        seen[key] = value
    return tree


def _parse_int(digits: str) -> int:
    if len(digits) > 400:
        raise ValueError("a number has more than 400 digits")
    return int(digits)


class _Scanner:
    """Finds where each field of valid JSON text stands.

    The stack holds the open containers: the message type they fill (None when unknown or
    free-form), their path, and the index of the next item, or None for an object.
    """

    def __init__(self, text: str, message: MessageType) -> None:
        self.text = text
        self.root = message
        self.offsets: dict[str, int] = {}

    def run(self) -> dict[str, int]:
        """Offsets by path."""
        stack: list[tuple[MessageType | None, str, int | None]] = []
        target: tuple[MessageType | None, str] = (self.root, "")
        for match in _TOKEN.finditer(self.text):
            mark = match.group("mark")
            if mark == "{" or mark == "[":
                stack.append((*target, 0 if mark == "[" else None))
                if mark == "[":
                    target = self._item(stack[-1], match.end())
            elif mark == "}" or mark == "]":
                stack.pop()
            elif mark == "," and stack[-1][2] is not None:
                described, path, index = stack.pop()
                assert index is not None
                stack.append((described, path, index + 1))
                target = self._item(stack[-1], match.end())
            elif mark is None and stack and stack[-1][2] is None and self._is_key(match.end()):
                target = self._key(stack[-1], match)
        return self.offsets

    def _is_key(self, end: int) -> bool:
        while self.text[end : end + 1].isspace():
            end += 1
        return self.text[end : end + 1] == ":"

    def _key(
        self, container: tuple[MessageType | None, str, int | None], match: re.Match[str]
    ) -> tuple[MessageType | None, str]:
        described, path, _ = container
        if described is None:
            return None, path
        name = match.group("string")
        field = field_named(described, name)
        path = join(path, name if field is None else field.name)
        self.offsets[path] = match.start()  # of a key that stands twice the last counts
        if field is None or field.message_type is None or is_map(field):
            return None, path
        return field.message_type, path

    def _item(
        self, container: tuple[MessageType | None, str, int | None], end: int
    ) -> tuple[MessageType | None, str]:
        described, path, index = container
        path = f"{path}[{index}]"
        while self.text[end : end + 1].isspace():
            end += 1
        self.offsets.setdefault(path, end)
        return described, path
