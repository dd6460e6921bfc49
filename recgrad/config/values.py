"""Values that users write, converted to the types of the schema's fields."""

from __future__ import annotations

import math
import re
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from recgrad.errors import LONGEST_SUGGESTED, nearest

# Descriptors are of other classes in protobuf's C implementation than in its Python one.
Field = Any
MessageType = Any
EnumType = Any

_WHOLE = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}
_REAL = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE)
NUMERIC = (*_WHOLE, *_REAL)
# From here on a number rounds to infinity as a 32-bit float.
_FLOAT32_LIMIT = (2 - 2**-24) * 2.0**127
_WHOLE_TEXT = re.compile(r"\s*[+-]?[0-9]{1,40}\s*\Z")
_REAL_TEXT = re.compile(
    r"\s*[+-]?(?:(?:[0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,6})?|inf|infinity|nan)\s*\Z",
    re.IGNORECASE,
)
_TRUE, _FALSE = ("true", "True"), ("false", "False")


# The kinds of `recgrad list`, by the oneof that chooses one of them.
_LISTED = {
    "optimizer": "optimizers",
    "learning_rate": "schedules",
    "loss": "losses",
    "metric": "metrics",
    "model": "models",
    "feature": "features",
    "sampler": "samplers",
    "seq_module": "encoders",
}


class UnfitError(ValueError):
    """A value that does not fit its field; the text is the rest of an error message."""


def show(value: object) -> str:
    """A value as an error message quotes it, cut when it is long."""
    if isinstance(value, (dict, list, tuple)):
        text = f"a {'map' if isinstance(value, dict) else 'list'} of {len(value)}"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = repr(value[:80]) if len(value) <= 80 else f"{value[:60]!r}… ({len(value)} characters)"
    elif isinstance(value, int) and abs(value) > 10**30:
        text = "a number of more than 30 digits"
    else:
        text = repr(value)
    return text


def unknown_field(message: MessageType, name: str) -> str:
    """The error for a field that a message does not have, in the words of the nearest one."""
    hint = nearest(name, message.fields_by_name)
    kind = "field"
    if hint:
        near = message.fields_by_name[hint.split("'")[1]]
        if near.containing_oneof is not None:
            kind = near.containing_oneof.name.replace("_", " ")
    shown = name if len(name) <= LONGEST_SUGGESTED else name[:60] + "…"
    if hint:
        return f"no {kind} '{shown}'{hint}"
    lists = [f"`recgrad list {_LISTED[oneof.name]}`" for oneof in message.oneofs if oneof.name in _LISTED]
    if len(lists) == 1:
        kind = next(oneof.name for oneof in message.oneofs if oneof.name in _LISTED).replace("_", " ")
    show_all = f"; {' and '.join(lists)} show{'s' * (len(lists) == 1)} what there is" if lists else ""
    return f"no {kind} '{shown}' in {message.name}{show_all}"


def unknown_enum(enum: EnumType, name: str) -> str:
    """The error for a name that an enum does not have."""
    names = [value.name for value in enum.values]
    hint = nearest(name, names)
    if not hint:
        hint = "; known: " + (", ".join(names) if len(names) <= 8 else ", ".join(names[:8]) + " …")
    return f"no {enum.name} {show(name)}{hint}"


def is_member(enum: EnumType, number: int) -> bool:
    """Whether an enum has a number; protobuf's own table takes those beyond 32 bits for smaller ones."""
    return abs(number) < 2**31 and number in enum.values_by_number


def wanted(field: Field) -> str:
    """What may be written into a field."""
    if field.message_type is not None:
        return f"a {field.message_type.name}"
    if field.type in _WHOLE:
        low, high = _WHOLE[field.type]
        return f"a whole number from {low} to {high} ({type_name(field)})"
    if field.enum_type is not None:
        return f"a {field.enum_type.name}"
    return {
        FieldDescriptor.TYPE_BOOL: "true or false",
        FieldDescriptor.TYPE_STRING: "text",
    }.get(field.type, f"a number ({type_name(field)})")


def type_name(field: Field) -> str:
    """The type of a field as the schema spells it."""
    names = {
        FieldDescriptor.TYPE_INT32: "int32",
        FieldDescriptor.TYPE_INT64: "int64",
        FieldDescriptor.TYPE_UINT32: "uint32",
        FieldDescriptor.TYPE_UINT64: "uint64",
        FieldDescriptor.TYPE_FLOAT: "float",
        FieldDescriptor.TYPE_DOUBLE: "double",
        FieldDescriptor.TYPE_BOOL: "bool",
        FieldDescriptor.TYPE_STRING: "string",
    }
    for described in (field.message_type, field.enum_type):
        if described is not None:
            return str(described.name)
    return names[field.type]


def unfit(field: Field, value: object) -> UnfitError:
    """The error for a value that cannot become the field's type."""
    return UnfitError(f"{show(value)} is not {wanted(field)}")


def whole(field: Field, value: int) -> int:
    """An integer, checked against the range of the field."""
    low, high = _WHOLE[field.type]
    if not low <= value <= high:
        raise unfit(field, value)
    return value


def real(field: Field, value: float) -> float:
    """A float, checked against the range of the field; infinities and NaN pass."""
    if field.type == FieldDescriptor.TYPE_FLOAT and math.isfinite(value) and abs(value) >= _FLOAT32_LIMIT:
        raise UnfitError(f"{show(value)} is too large for a float")
    return value


def convert(field: Field, value: Any) -> Any:
    """A JSON value as the scalar type of `field`.

    Numbers and truth values may be given as text, numbers may be given for text, whole
    numbers may be given as floats without a fraction, enums by name or number.
    """
    if field.type in _WHOLE:
        return whole(field, _to_int(field, value))
    if field.type in _REAL:
        return real(field, _to_float(field, value))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return _to_bool(field, value)
    if field.enum_type is not None:
        return _to_enum(field, value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 10**30:
        return str(value)
    if not isinstance(value, str):
        raise unfit(field, value)
    return unicode_text(value)


def unicode_text(value: str) -> str:
    """Text without lone surrogates, which no UTF-8 file can hold."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UnfitError(f"text holds a lone surrogate at character {error.start}") from None
    return value


def _to_int(field: Field, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _WHOLE_TEXT.match(value):
        return int(value)
    raise unfit(field, value)


def _to_float(field: Field, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise unfit(field, value)
    if isinstance(value, str) and not _REAL_TEXT.match(value):
        raise unfit(field, value)
    try:
        number = float(value)
    except OverflowError:
        raise unfit(field, value) from None
    if math.isinf(number) and isinstance(value, str) and "n" not in value.lower():
        raise UnfitError(f"{show(value)} is too large for a {type_name(field)}")
    return number


def _to_bool(field: Field, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in _TRUE + _FALSE:
        return value in _TRUE
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise unfit(field, value)


def _to_enum(field: Field, value: Any) -> int:
    enum = field.enum_type
    if isinstance(value, str):
        if value in enum.values_by_name:
            return int(enum.values_by_name[value].number)
        raise UnfitError(unknown_enum(enum, value))
    if isinstance(value, int) and not isinstance(value, bool) and is_member(enum, value):
        return value
    raise unfit(field, value)
