"""Numbers of JSON, read from memory eight digits at a time, and rounded as exact arithmetic would round."""

from __future__ import annotations

from typing import Any

import numpy as np

from recgrad.kernels import cached_njit
from recgrad.kernels.simd import load_u8, load_word

EXACT = np.array([10.0**power for power in range(23)])
"""Powers of ten that a float holds exactly."""
_MOST_DIGITS = 18
"""Decimal digits that an int64 always holds."""
_SPLIT = float((1 << 27) + 1)
_SLACK = 1e-9
_MINUS, _PLUS, _DOT, _ZERO = 45, 43, 46, 48
# Of eight digits in one word: what is added or kept to see that they are digits, and to weigh them.
_ZEROS, _SIXES = np.uint64(0x3030303030303030), np.uint64(0x0606060606060606)
_HIGHS, _THREES = np.uint64(0xF0F0F0F0F0F0F0F0), np.uint64(0x3333333333333333)
_EVERY_FOURTH = np.uint64(0x000000FF000000FF)
_WEIGHTS = np.uint64(100 + (1_000_000 << 32)), np.uint64(1 + (10_000 << 32))
_U4, _U8, _U10, _U16, _U32 = (np.uint64(number) for number in (4, 8, 10, 16, 32))


@cached_njit(nogil=True)
def _eight(word: Any) -> Any:
    """The number that eight decimal digits mean; pairs are joined, then pairs of pairs, in one word."""
    digits = word - _ZEROS
    pairs = digits * _U10 + (digits >> _U8)
    low, high = pairs & _EVERY_FOURTH, (pairs >> _U16) & _EVERY_FOURTH
    return np.int64((low * _WEIGHTS[0] + high * _WEIGHTS[1]) >> _U32)


@cached_njit(nogil=True)
def _are_digits(word: Any) -> Any:
    """Whether eight bytes are all decimal digits."""
    return (word & _HIGHS) | (((word + _SIXES) & _HIGHS) >> _U4) == _THREES


@cached_njit(nogil=True)
def _digits(text: Any, at: Any, end: Any, mantissa: Any, digits: Any) -> Any:
    """(place after them, mantissa, count) with the digits from `at` on; zeros in front do not count.

    Digits beyond the 18th are counted alone.
    """
    if mantissa == 0:
        while at < end and load_u8(text + at) == _ZERO:
            at += 1
    while at + 8 <= end and digits + 8 <= _MOST_DIGITS:
        word = load_word(text + at)
        if not _are_digits(word):
            break
        mantissa = mantissa * 100_000_000 + _eight(word)
        digits += 8
        at += 8
    while at < end:
        digit = np.int64(load_u8(text + at)) - _ZERO
        if digit < 0 or digit > 9:
            break
        if digits < _MOST_DIGITS:
            mantissa = mantissa * 10 + digit
        digits += mantissa > 0
        at += 1
    return at, mantissa, digits


@cached_njit(nogil=True)
def read_number(text: Any, at: Any, end: Any) -> Any:
    """(place after it, digits as an integer, power of ten, negative, kind) of a number.

    kind: 0 an integer, 1 with a fraction or exponent, 2 one that has too many digits for exactness here.
    The place is −1 where it is no number of JSON.
    """
    negative = load_u8(text + at) == _MINUS
    if negative:
        at += 1
    first = at
    at, mantissa, digits = _digits(text, at, end, np.int64(0), 0)
    if at == first or (load_u8(text + first) == _ZERO and at - first > 1):
        return -1, mantissa, 0, negative, 0
    power, kind = 0, 0
    if at < end and load_u8(text + at) == _DOT:
        at += 1
        first, kind, before = at, 1, digits
        at, mantissa, digits = _digits(text, at, end, mantissa, digits)
        power = first - at + (digits - max(before, _MOST_DIGITS) if digits > _MOST_DIGITS else 0)
        if at == first:
            return -1, mantissa, 0, negative, 0
    if at < end and (load_u8(text + at) == 101 or load_u8(text + at) == 69):
        at += 1
        kind = 1
        down = at < end and load_u8(text + at) == _MINUS
        if at < end and (load_u8(text + at) == _MINUS or load_u8(text + at) == _PLUS):
            at += 1
        first, exponent = at, 0
        while at < end and _ZERO <= load_u8(text + at) <= _ZERO + 9:
            exponent = min(exponent * 10 + (load_u8(text + at) - _ZERO), 100_000)
            at += 1
        if at == first:
            return -1, mantissa, 0, negative, 0
        power += -exponent if down else exponent
    if digits > _MOST_DIGITS:
        kind = 2
    return at, mantissa, power, negative, kind


@cached_njit(nogil=True)
def _halves(value: Any) -> Any:
    """A float as the exact sum of two of 26 bits (Veltkamp)."""
    scaled = _SPLIT * value
    high = scaled - (scaled - value)
    return high, value - high


@cached_njit(nogil=True)
def quotient_of(mantissa: Any, divisor: Any) -> Any:
    """(mantissa / divisor rounded once, whether that is certain), of up to 18 digits and a power up to 10^22.

    The quotient of the leading 53 bits is corrected by its exact remainder (Dekker's product) and the bits
    that are left. Only next to the middle between two floats might the correction itself round wrongly: it
    is certain where a slightly larger and a slightly smaller one give the same.
    """
    lead = np.float64(mantissa)
    rest = np.float64(mantissa - np.int64(lead))
    quotient = lead / divisor
    a, b = _halves(quotient)
    c, d = _halves(divisor)
    product = quotient * divisor
    error = ((a * c - product) + a * d + b * c) + b * d
    correction = (((lead - product) - error) + rest) / divisor
    value = quotient + correction * (1 + _SLACK)
    return value, value == quotient + correction * (1 - _SLACK)
