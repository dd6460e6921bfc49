"""Reading protobuf messages: the chosen member of a oneof, and fields as keyword arguments."""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf import json_format, struct_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def chosen(message: Message, oneof: str) -> tuple[str, Any] | None:
    """The name and message of the member of `oneof` that is set, or None."""
    name = message.WhichOneof(oneof)
    return None if name is None else (name, getattr(message, name))


def to_kwargs(message: Message) -> dict[str, Any]:
    """The fields of a message as keyword arguments.

    Defaults of the schema are filled in. A field that is unset and has no default is left
    out, so that the receiver's own default holds. Floats become the shortest decimal that
    the user can have written (0.001, not 0.0010000000474974513), enums become their names,
    lists and maps become lists and dicts, a Struct becomes a dict; other messages stay
    messages.
    """
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            values[field.name] = _repeated(field, getattr(message, field.name))
        elif field.has_presence and not message.HasField(field.name) and not field.has_default_value:
            continue
        else:
            values[field.name] = _scalar(field, getattr(message, field.name))
    return values


def struct_to_dict(struct: struct_pb2.Struct) -> dict[str, Any]:
    """A Struct as a dict; numbers without a fraction become ints, as the user wrote them."""
    return {key: _whole(value) for key, value in json_format.MessageToDict(struct).items()}


def shortest_float(value: float) -> float:
    """The shortest decimal that reads back as the same 32-bit float."""
    for digits in range(6, 9):
        short = float(f"{value:.{digits}g}")
        if struct.unpack("f", struct.pack("f", short))[0] == value:
            return short
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return value


def _repeated(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        item = field.message_type.fields_by_name["value"]
        return {key: _scalar(item, entry) for key, entry in value.items()}
    return [_scalar(field, item) for item in value]


def _scalar(field: Any, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return shortest_float(value)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return field.enum_type.values_by_number[value].name
    if isinstance(value, struct_pb2.Struct):
        return struct_to_dict(value)
    return value
