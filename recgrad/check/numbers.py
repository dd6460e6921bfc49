"""Numbers that are not numbers."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from recgrad.check.rule import CHECKS, Context, number

_FLOATS = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE)
# An infinite norm is the largest element, which is well defined.
_MAY_BE_INFINITE = frozenset({("GradClipping", "norm_type")})


@CHECKS.register("finite numbers")
def check_finite(context: Context) -> None:
    """Report NaN and infinity wherever a number is wanted."""
    for node in context.nodes:
        for field in _float_fields(node.message.DESCRIPTOR):
            value = getattr(node.message, field.name)
            if field.is_repeated:
                values = value.values() if hasattr(value, "values") else value
                bad = next((item for item in values if not math.isfinite(item)), None)
            elif math.isfinite(value) or not node.message.HasField(field.name):
                bad = None
            else:
                bad = value
            if bad is None or ((node.kind, field.name) in _MAY_BE_INFINITE and bad > 0):
                continue
            context.problem(node.at(field.name), f"must be a finite number, got {number(bad)}")


@lru_cache(maxsize=1024)
def _float_fields(message: Any) -> tuple[Any, ...]:
    found = []
    for field in message.fields:
        scalar = field
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            scalar = field.message_type.fields_by_name["value"]
        if scalar.type in _FLOATS:
            found.append(field)
    return tuple(found)
