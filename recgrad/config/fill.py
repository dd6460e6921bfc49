"""Filling a message from a tree of dicts, lists and scalars, as JSON gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from google.protobuf import json_format, struct_pb2
from google.protobuf.message import Message

from recgrad.config.values import Field, MessageType, UnfitError, convert, show, unknown_field, wanted

Report = Callable[[str, str], None]
"""Receives the path and the text of a problem."""

MAX_DEPTH = 100


@lru_cache(maxsize=1024)
def _fields(message: MessageType) -> dict[str, Field]:
    """Fields by every name that JSON may use: the schema's own and lowerCamelCase."""
    names = {field.json_name: field for field in message.fields}
    names.update({field.name: field for field in message.fields})
    return names


def field_named(message: MessageType, name: str) -> Field | None:
    """The field of a message by its own or its JSON name."""
    return _fields(message).get(name)


def fill(message: Message, tree: Mapping[Any, Any], report: Report, path: str = "", depth: int = 0) -> None:
    """Set the fields of `message` that `tree` names; None leaves a field as it is.

    Problems go to `report`, with the path of the field; what is fine is set all the same.
    """
    if depth > MAX_DEPTH:
        report(path, f"values are nested more than {MAX_DEPTH} deep")
        return
    if isinstance(message, struct_pb2.Struct):
        _fill_struct(message, tree, report, path)
        return
    seen: dict[str, str] = {}
    for name, value in tree.items():
        field = field_named(message.DESCRIPTOR, name) if isinstance(name, str) else None
        where = join(path, name if field is None else field.name)
        if field is None:
            report(path, unknown_field(message.DESCRIPTOR, str(name)))
        elif value is None:
            continue
        elif field.name in seen:
            report(path, f"'{seen[field.name]}' and '{name}' are the same field; keep one")
        elif (other := other_member(message, field)) is not None:
            report(path, f"{other} and {field.name} are both set; keep one")
        else:
            seen[field.name] = name
            set_field(message, field, value, report, where, depth)


def set_field(message: Message, field: Field, value: Any, report: Report, path: str, depth: int = 0) -> None:
    """Set one field, adding to what a list, map or message already holds."""
    if is_map(field):
        _fill_map(message, field, value, report, path, depth)
    elif field.is_repeated:
        if not isinstance(value, (list, tuple)):
            report(path, f"{show(value)} is not a list")
            return
        if field.message_type is None and _extend(message, field, value):
            return
        for i, item in enumerate(value):
            append(message, field, item, report, f"{path}[{i}]", depth)
    elif field.message_type is not None:
        if not isinstance(value, Mapping):
            report(path, f"{show(value)} is not {wanted(field)}")
            return
        child = getattr(message, field.name)
        child.SetInParent()
        fill(child, value, report, path, depth + 1)
    else:
        try:
            setattr(message, field.name, convert(field, value))
        except UnfitError as problem:
            report(path, str(problem))


def _extend(message: Message, field: Field, values: Sequence[Any]) -> bool:
    """Add scalars to a list at once; adds nothing and says False when one does not fit."""
    try:
        getattr(message, field.name).extend([convert(field, value) for value in values])
    except UnfitError:
        return False
    return True


def append(message: Message, field: Field, value: Any, report: Report, path: str, depth: int = 0) -> None:
    """Add one item to a list field."""
    items = getattr(message, field.name)
    if field.message_type is not None:
        if not isinstance(value, Mapping):
            report(path, f"{show(value)} is not {wanted(field)}")
            return
        fill(items.add(), value, report, path, depth + 1)
        return
    try:
        items.append(convert(field, value))
    except UnfitError as problem:
        report(path, str(problem))


def join(path: str, name: object) -> str:
    """The path of a field of the message at `path`."""
    return f"{path}.{name}" if path else str(name)


def is_map(field: Field) -> bool:
    """Whether a field is a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def other_member(message: Message, field: Field) -> str | None:
    """The other member that the field's oneof is set to, if it is."""
    if field.containing_oneof is None:
        return None
    name = message.WhichOneof(field.containing_oneof.name)
    return None if name == field.name else name


def _fill_map(message: Message, field: Field, value: Any, report: Report, path: str, depth: int) -> None:
    """Put a dict's items, or a list of {"key": …, "value": …}, into a map field."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, (list, tuple)) and all(map(_is_entry, value)):
        pairs = [(item["key"], item["value"]) for item in value]
    else:
        report(path, f"{show(value)} is not a map")
        return
    target = getattr(message, field.name)
    entry = field.message_type.fields_by_name
    seen: set[Any] = set()
    for key, item in pairs:
        try:
            name = convert(entry["key"], key)
            if name in seen:
                report(path, f"key {show(key)} is given twice")
            elif entry["value"].message_type is None:
                target[name] = convert(entry["value"], item)
            elif isinstance(item, Mapping):
                fill(target[name], item, report, path, depth + 1)
            else:
                report(path, f"key {show(key)}: {show(item)} is not {wanted(entry['value'])}")
            seen.add(name)
        except UnfitError as problem:
            report(path, f"key {show(key)}: {problem}")


def _is_entry(item: Any) -> bool:
    return isinstance(item, Mapping) and set(item) == {"key", "value"}


def _fill_struct(struct: struct_pb2.Struct, tree: Mapping[str, Any], report: Report, path: str) -> None:
    """Put free-form JSON into a Struct."""
    try:
        json_format.ParseDict(dict(tree), struct)
    except (json_format.ParseError, TypeError, ValueError, RecursionError, AttributeError) as error:
        reason = "is nested too deep" if isinstance(error, RecursionError) else str(error)[:200]
        report(path, f"{show(tree)} cannot be kept as free-form JSON: {reason}")
