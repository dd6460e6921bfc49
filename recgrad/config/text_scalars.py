"""Scalars of text format: escapes in text, truth values and numbers."""

from __future__ import annotations

import math
import re
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from recgrad.config.values import Field, UnfitError, is_member, real, type_name, wanted, whole

_ESCAPE = re.compile(
    r"\\(?:(?P<plain>[abfnrtv\\'\"?])|x(?P<hex>[0-9a-fA-F]{1,2})|(?P<octal>[0-7]{1,3})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|(?P<bad>(?s:.)))"
)
_PLAIN = dict(zip("abfnrtv\\'\"?", "\a\b\f\n\r\t\v\\'\"?"))
_WHOLE_TYPES = (
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_UINT64,
)
_REAL_TYPES = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE)


def unescape(body: str) -> str:
    """Text with C escapes as the characters they stand for."""
    out = bytearray()
    position = 0
    for match in _ESCAPE.finditer(body):
        out += body[position : match.start()].encode("utf-8", "surrogatepass")
        kind, digits = match.lastgroup, match.group(match.lastgroup or 0)
        if kind == "plain":
            out += _PLAIN[digits].encode()
        elif kind in ("hex", "octal") and int(digits, 16 if kind == "hex" else 8) < 256:
            out.append(int(digits, 16 if kind == "hex" else 8))
        elif kind in ("short", "long") and int(digits, 16) < 0x110000:
            out += chr(int(digits, 16)).encode("utf-8", "surrogatepass")
        else:
            raise UnfitError(f"no escape '{match.group()}'; write a backslash as '\\\\'")
        position = match.end()
    out += body[position:].encode("utf-8", "surrogatepass")
    try:
        return out.decode()
    except UnicodeDecodeError:
        raise UnfitError("the escapes of this text do not make valid UTF-8") from None


def truth(field: Field, token: str) -> bool:
    """A truth value as text format writes it."""
    if token in ("true", "True", "t", "1"):
        return True
    if token in ("false", "False", "f", "0"):
        return False
    raise UnfitError(f"{token[:60]} is not {wanted(field)}")


def number(field: Field, kind: str, token: str, negative: bool) -> Any:
    """A number token in the field's type."""
    sign = -1 if negative else 1
    shown = ("-" if negative else "") + token
    misfit = UnfitError(f"{shown[:60]} is not {wanted(field)}")
    if len(token) > 400:
        raise misfit
    if field.type in _REAL_TYPES:
        return _real_number(field, kind, token, sign, shown)
    try:
        if kind == "name":
            raise ValueError
        octal = len(token) > 1 and token[0] == "0" and token[1:].isdigit()
        value = sign * int(token, 8 if octal else 0)
    except ValueError:
        raise misfit from None
    if field.enum_type is not None:
        if not is_member(field.enum_type, value):
            raise misfit
        return value
    assert field.type in _WHOLE_TYPES
    return whole(field, value)


def _real_number(field: Field, kind: str, token: str, sign: int, shown: str) -> float:
    """A number token as a float; words are inf and nan."""
    if kind == "name":
        if token.lower() not in ("inf", "infinity", "nan", "inff", "nanf"):
            raise UnfitError(f"{shown[:60]} is not {wanted(field)}")
        return sign * float(token.lower()[:3])
    try:
        value = float(int(token, 16) if token[:2] in ("0x", "0X") else token.rstrip("fF"))
    except OverflowError:
        value = math.inf
    if math.isinf(value):
        raise UnfitError(f"{shown[:60]} is too large for a {type_name(field)}")
    return real(field, sign * value)
