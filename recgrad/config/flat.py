"""A config as a flat list of what is set in it, by path."""

from __future__ import annotations

from typing import Any

from recgrad.config.messages import to_kwargs


def flat(message: Any, path: str = "") -> dict[str, Any]:
    """The fields of a config that are set, by path; features and groups by name instead of by number."""
    values: dict[str, Any] = {}
    settings = to_kwargs(message)
    for field, value in message.ListFields():
        place = f"{path}.{field.name}" if path else field.name
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            values[place] = settings[field.name]
        elif field.is_repeated:
            for number, item in enumerate(value):
                values |= flat(item, f"{place}[{_called(item) or number}]")
        else:
            values[place] = _chosen(value)
            values |= flat(value, place)
    return values


def _called(item: Any) -> str:
    """The name of a feature, group or tower."""
    for name in ("feature_name", "group_name", "tower_name", "sequence_name"):
        if name in item.DESCRIPTOR.fields_by_name and getattr(item, name):
            return str(getattr(item, name))
    for _, value in item.ListFields():
        if hasattr(value, "DESCRIPTOR"):
            return _called(value)
    return ""


def _chosen(message: Any) -> str:
    """What a message without further fields says by being there."""
    return str(message.DESCRIPTOR.name)
