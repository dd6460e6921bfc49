"""Which field of a config an error of a constructor is about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.errors import ConfigError, Problem, RecgradError

_STEP = re.compile(r"(\w+)(?:\[([^\]]*)\])?")
_PATH = re.compile(r"((?:\w+(?:\[[^\]]*\])?)(?:\.\w+(?:\[[^\]]*\])?)*): ")
_LEADING = re.compile(r"\w+\[\d+\](?:\.\w+(?:\[\d+\])?)*(?= )")  # such as `sizes[2]`
_VERBS = "(?:must|is|needs|has|belongs|takes)"
_NAMES = ("group_name", "tower_name", "feature_name", "sequence_name")
_WORD = re.compile(r"\w+")


def problems_of(error: Exception, where: str, config: PipelineConfig) -> list[Problem]:
    """The problems that an exception stands for, at the paths of the fields they are about.

    Args:
        error: what building raised.
        where: the path of what was being built, for errors that do not say where.
        config: the config that it was built from.
    """
    if isinstance(error, ConfigError):
        found: Iterable[Problem] = error.problems
    elif isinstance(error, (RecgradError, ValueError)):
        found = [Problem("", str(error))]
    else:
        found = [Problem("", f"cannot be built: {type(error).__name__}: {error}")]
    return [_placed(problem, where, config) for problem in found]


def _placed(problem: Problem, where: str, config: PipelineConfig) -> Problem:
    """The problem at a path of the config; the text says no more where it is."""
    path, what = problem.where, problem.what
    if not path:
        match = _PATH.match(what)
        if match is not None:
            for candidate in (match.group(1), f"{where}.{match.group(1)}"):
                if _resolve(config, candidate) is not None:
                    path, what = candidate, what[match.end() :]
                    break
    name, _, quoted = path.partition(" ")
    if name == "feature":
        name = _feature_path(config, quoted.strip("'"))
    resolved = _resolve(config, name) if name else None
    if resolved is None:
        resolved = _resolve(config, where)
        if resolved is None:
            return Problem(where, what)
        quoted = ""
    path, message = resolved
    inside = _LEADING.match(what)
    named = _resolve(config, f"{path}.{inside.group()}") if inside else None
    if inside and named:
        return Problem(named[0], what[inside.end() + 1 :])
    path += _named_field(message, what)
    field = path.rpartition(".")[2]
    what = re.sub(rf"^{re.escape(field)}(: | (?={_VERBS} ))", "", what)
    return Problem(path, f"{quoted}: {what}" if quoted else what)


def _resolve(config: Any, path: str) -> tuple[str, Any] | None:
    """A path with numbers in place of names, and what stands there; None if the config has no such place."""
    message, done = config, ""
    for step in path.split("."):
        match = _STEP.fullmatch(step)
        if match is None or not hasattr(message, "DESCRIPTOR"):
            return None
        field, key = match.groups()
        described = message.DESCRIPTOR.fields_by_name.get(field)
        if described is None:
            return None
        done = f"{done}.{field}" if done else field
        message = getattr(message, field)
        if key is not None:
            number = _number(message, key)
            if number is None:
                return None
            message, done = message[number], f"{done}[{number}]"
    return done, message


def _number(items: Any, key: str) -> int | None:
    """The item that a number or a name means."""
    if key.isdecimal():
        return int(key) if int(key) < len(items) else None
    for number, item in enumerate(items):
        if key in (getattr(item, name, None) for name in _NAMES):
            return number
    return None


def _feature_path(config: PipelineConfig, name: str) -> str:
    """The path of a feature by the name that groups give it."""
    for i, item in enumerate(config.feature_configs):
        choice = item.WhichOneof("feature")
        if choice is None:
            continue
        message = getattr(item, choice)
        path = f"feature_configs[{i}].{choice}"
        if choice != "sequence_feature":
            if message.feature_name == name:
                return path
            continue
        for j, member in enumerate(message.features):
            inner = member.WhichOneof("feature")
            own = getattr(member, inner).feature_name if inner else None
            if own and name.startswith(message.sequence_name) and name.endswith(own):
                return f"{path}.features[{j}].{inner}"
    return ""


def _named_field(message: Any, text: str) -> str:
    """`.field`, or `.message.field` and so on, of the first set field that the text names; else nothing."""
    if not hasattr(message, "DESCRIPTOR"):
        return ""
    words = list(dict.fromkeys(_WORD.findall(text)))
    paths: dict[str, str] = {}
    for name, path in _set_fields(message, ""):
        paths.setdefault(name, path)
    return next((paths[word] for word in words if word in paths), "")


def _set_fields(message: Any, path: str) -> Iterator[tuple[str, str]]:
    """Names and paths of the fields that a message sets, its own before those of messages inside it."""
    inner = []
    for field, value in message.ListFields():
        yield field.name, f"{path}.{field.name}"
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        items = list(enumerate(value)) if field.is_repeated else [(None, value)]
        inner += [(item, f"{path}.{field.name}" + ("" if i is None else f"[{i}]")) for i, item in items]
    for item, place in inner:
        if hasattr(item, "ListFields"):
            yield from _set_fields(item, place)
