"""Reads the rows of JSON bodies straight into columns, without the GIL and without Python objects.

The kernel takes what clients send nearly always: flat rows that all have the same keys in the same
order, numbers, plain texts, nulls and bools of the types that the columns have. It refuses all else,
and what is no JSON at all, with ODD; whoever calls it then reads that body in another way,
which also finds the words for what is wrong. What it does take it reads exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from recgrad.kernels import cached_njit

# What the values of a column are.
INT, FLOAT, TEXT, BOOL, OTHER = 0, 1, 2, 3, 4
# What became of a body: read; not of the kind that is read here; of another shape than the one before it.
READ, ODD, OTHER_SHAPE = 0, 1, 2
# How a cell is to be understood: null, a value, a float that is left to a slower and exact reader.
NULL, VALUE, HARD = 0, 1, 2
# Columns of `found`: code, first row, rows, user's begin and end, on_bad_row is null, and in HIGH
# a bit each for bytes over 127 and for cells that are HARD.
CODE, FIRST, ROWS, USER, USER_END, NULLS, HIGH = 0, 1, 2, 3, 4, 5, 6
FOUND = 7
HAS_HIGH, HAS_HARD = 128, 256

_EXACT = np.array([10.0**power for power in range(23)])
"""Powers of ten that a float holds exactly."""
_MANTISSA = 1 << 53
_MOST_DIGITS = 18
"""Decimal digits that an int64 always holds."""
_SPLIT = float((1 << 27) + 1)
_QUOTE, _BACKSLASH, _COLON, _COMMA, _MINUS, _PLUS, _DOT, _ZERO = 34, 92, 58, 44, 45, 43, 46, 48
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = 123, 125, 91, 93


@cached_njit(nogil=True)
def _space(text: Any, at: Any, end: Any) -> Any:
    """The first place from `at` on that is no white space."""
    while at < end and (text[at] == 32 or text[at] == 10 or text[at] == 13 or text[at] == 9):
        at += 1
    return at


@cached_njit(nogil=True)
def _string(text: Any, at: Any, end: Any) -> Any:
    """The closing quote of the text that begins at `at`, −1 for an odd one; and its bytes over 127."""
    high = 0
    at += 1
    while at < end:
        byte = text[at]
        if byte == _QUOTE:
            return at, high
        if byte == _BACKSLASH or byte < 32:
            return -1, high
        high |= byte & 128
        at += 1
    return -1, high


@cached_njit(nogil=True)
def _same(text: Any, at: Any, end: Any, names: Any, begin: Any, stop: Any) -> Any:
    """Whether a span of the body is a name."""
    if end - at != stop - begin:
        return False
    for i in range(end - at):  # noqa: SIM110 - a generator is not compiled
        if text[at + i] != names[begin + i]:
            return False
    return True


@cached_njit(nogil=True)
def _word(text: Any, at: Any, end: Any, word: Any) -> Any:
    """The place after a word, or −1."""
    if end - at < len(word):
        return -1
    for i in range(len(word)):
        if text[at + i] != word[i]:
            return -1
    return at + len(word)


@cached_njit(nogil=True)
def _digits(text: Any, at: Any, end: Any, mantissa: Any, digits: Any) -> Any:
    """(place after them, mantissa, count) with the digits from `at` on; zeros in front do not count.

    Digits beyond the 18th are counted alone.
    """
    while at < end:
        digit = np.int64(text[at]) - _ZERO
        if digit < 0 or digit > 9:
            break
        if digits < _MOST_DIGITS:
            mantissa = mantissa * 10 + digit
        digits += mantissa > 0
        at += 1
    return at, mantissa, digits


@cached_njit(nogil=True)
def _number(text: Any, at: Any, end: Any) -> Any:
    """(place after it, digits as an integer, power of ten, negative, kind) of a number.

    kind: 0 an integer, 1 with a fraction or exponent, 2 one that has too many digits for exactness here.
    The place is −1 where it is no number of JSON.
    """
    negative = text[at] == _MINUS
    if negative:
        at += 1
    first = at
    at, mantissa, digits = _digits(text, at, end, np.int64(0), 0)
    if at == first or (text[first] == _ZERO and at - first > 1):
        return -1, mantissa, 0, negative, 0
    power, kind = 0, 0
    if at < end and text[at] == _DOT:
        at += 1
        first, kind, before = at, 1, digits
        at, mantissa, digits = _digits(text, at, end, mantissa, digits)
        power = first - at + (digits - max(before, _MOST_DIGITS) if digits > _MOST_DIGITS else 0)
        if at == first:
            return -1, mantissa, 0, negative, 0
    if at < end and (text[at] == 101 or text[at] == 69):
        at += 1
        kind = 1
        down = at < end and text[at] == _MINUS
        if at < end and (text[at] == _MINUS or text[at] == _PLUS):
            at += 1
        first, exponent = at, 0
        while at < end and _ZERO <= text[at] <= _ZERO + 9:
            exponent = min(exponent * 10 + (text[at] - _ZERO), 100_000)
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
def _quotient(mantissa: Any, divisor: Any) -> Any:
    """(mantissa / divisor rounded once, whether that is certain), of up to 18 digits and a power up to 10^22.

    The quotient of the leading 53 bits is corrected by its exact remainder (Dekker's product) and the bits
    that are left. Only next to the middle between two floats might the correction itself round wrongly.
    """
    lead = np.float64(mantissa)
    rest = np.float64(mantissa - np.int64(lead))
    quotient = lead / divisor
    a, b = _halves(quotient)
    c, d = _halves(divisor)
    product = quotient * divisor
    error = ((a * c - product) + a * d + b * c) + b * d
    correction = (((lead - product) - error) + rest) / divisor
    value = quotient + correction
    lost = abs(correction - (value - quotient))
    step = np.nextafter(value, np.inf) - value
    middle = step / 2 if np.nextafter(value, 0.0) + step == value else step / 4  # closer below a power of two
    return value, lost < middle * (1 - 1e-9)


@cached_njit(nogil=True, inline="always")
def _value(
    text: Any,
    at: Any,
    end: Any,
    kind: Any,
    column: Any,
    row: Any,
    cells: Any,
    floats: Any,
    stops: Any,
    states: Any,
) -> Any:
    """Read one value into its cell; returns the place after it, −1 for an odd one, and bits as in `found`."""
    byte = text[at]
    if byte == 110:
        states[column, row] = NULL
        cells[column, row] = 0
        stops[column, row] = 0
        return _word(text, at, end, b"null"), 0
    states[column, row] = VALUE
    if byte == _QUOTE:
        close, high = _string(text, at, end)
        if kind != TEXT or close < 0:
            return -1, 0
        cells[column, row] = at + 1
        stops[column, row] = close
        return close + 1, high
    if byte == _MINUS or _ZERO <= byte <= _ZERO + 9:
        if kind > FLOAT:
            return -1, 0
        begin = at
        at, mantissa, power, negative, form = _number(text, at, end)
        if at < 0:
            return -1, 0
        if kind == INT:
            if form:
                return -1, 0
            cells[column, row] = -mantissa if negative else mantissa
            return at, 0
        if form == 0 and mantissa <= _MANTISSA:
            stops[column, row] = 0
            floats[column, row] = -mantissa if negative else mantissa
            return at, 0
        if form == 1 and mantissa <= _MANTISSA and -22 <= power <= 22:
            value = np.float64(mantissa)
            value = value / _EXACT[-power] if power < 0 else value * _EXACT[power]
            floats[column, row] = -value if negative else value
            return at, 0
        if form == 1 and -22 <= power < 0:
            value, certain = _quotient(mantissa, _EXACT[-power])
            if certain:
                floats[column, row] = -value if negative else value
                return at, 0
        if form == 0:
            return -1, 0
        states[column, row] = HARD
        cells[column, row] = begin
        stops[column, row] = at
        return at, HAS_HARD
    if kind == BOOL and byte == 116:
        cells[column, row] = 1
        return _word(text, at, end, b"true"), 0
    if kind == BOOL and byte == 102:
        cells[column, row] = 0
        return _word(text, at, end, b"false"), 0
    return -1, 0


@cached_njit(nogil=True)
def _row(
    text: Any, at: Any, end: Any, row: Any, names: Any, offsets: Any, kinds: Any, shape: Any,
    cells: Any, floats: Any, stops: Any, states: Any,
) -> Any:  # fmt: skip
    """Read the object at `at` as a row; returns the place after it, a code, and bits as in `found`.

    shape[0] is the number of keys of a row, shape[1 + j] the column of the j-th; −1 before the first row.
    """
    high = 0
    number = 0
    at = _space(text, at + 1, end)
    while at < end and text[at] != _CLOSE:
        if number:
            if text[at] != _COMMA:
                return at, ODD, high
            at = _space(text, at + 1, end)
        if at >= end or text[at] != _QUOTE:
            return at, ODD, high
        column, close = -1, -1
        if 0 <= number < shape[0]:  # the key that the other rows have here; no name in `shape` has a quote
            column = shape[1 + number]
            close = at + 1 + offsets[column + 1] - offsets[column]
            if (
                close >= end
                or text[close] != _QUOTE
                or not _same(text, at + 1, close, names, offsets[column], offsets[column + 1])
            ):
                close = -1
        if close < 0:
            close, _ = _string(text, at, end)
            if close < 0:
                return at, ODD, high
            if shape[0] >= 0:
                return at, OTHER_SHAPE, high
            column = -1
            for one in range(len(kinds)):
                if _same(text, at + 1, close, names, offsets[one], offsets[one + 1]):
                    column = one
            for one in range(number):
                if shape[1 + one] == column:
                    column = -1
            if column < 0:
                return at, ODD, high
            shape[1 + number] = column
        at = _space(text, close + 1, end)
        if at >= end or text[at] != _COLON:
            return at, ODD, high
        at = _space(text, at + 1, end)
        if at >= end:
            return at, ODD, high
        at, more = _value(text, at, end, kinds[column], column, row, cells, floats, stops, states)
        if at < 0:
            return at, ODD, high
        high |= more
        number += 1
        at = _space(text, at, end)
    if at >= end or number == 0:
        return at, ODD, high
    if shape[0] < 0:
        shape[0] = number
    elif number != shape[0]:
        return at, OTHER_SHAPE, high
    return at + 1, READ, high


@cached_njit(nogil=True)
def _skip(text: Any, at: Any, end: Any) -> Any:
    """The place after the object at `at`, by its brackets alone; −1 if it has no end."""
    depth = 0
    while at < end:
        byte = text[at]
        if byte == _QUOTE:
            at += 1
            while at < end and text[at] != _QUOTE:
                at += 2 if text[at] == _BACKSLASH else 1
            if at >= end:
                return -1
        elif byte in (_OPEN, _OPEN_LIST):
            depth += 1
        elif byte in (_CLOSE, _CLOSE_LIST):
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return -1


@cached_njit(nogil=True)
def _body(
    text: Any, at: Any, end: Any, row: Any, max_rows: Any, names: Any, offsets: Any, kinds: Any, shape: Any,
    cells: Any, floats: Any, stops: Any, states: Any, found: Any,
) -> Any:  # fmt: skip
    """Read one body; returns the code. `found` is its line of what was found."""
    rows, items = -1, 0
    at = _space(text, at, end)
    if at >= end or text[at] != _OPEN:
        return ODD
    at = _space(text, at + 1, end)
    first = True
    while at < end and text[at] != _CLOSE:
        if not first:
            if text[at] != _COMMA:
                return ODD
            at = _space(text, at + 1, end)
        first = False
        if at >= end or text[at] != _QUOTE:
            return ODD
        close, _ = _string(text, at, end)
        if close < 0:
            return ODD
        key, size = at + 1, close - at - 1
        at = _space(text, close + 1, end)
        if at >= end or text[at] != _COLON:
            return ODD
        at = _space(text, at + 1, end)
        if at >= end:
            return ODD
        is_items = size == 5 and _word(text, key, close, b"items") >= 0
        if is_items or (size == 4 and _word(text, key, close, b"rows") >= 0):
            if rows >= 0 or text[at] != _OPEN_LIST:
                return ODD
            rows, items = 0, is_items
            at = _space(text, at + 1, end)
            while at < end and text[at] != _CLOSE_LIST:
                if rows:
                    if text[at] != _COMMA:
                        return ODD
                    at = _space(text, at + 1, end)
                if at >= end or text[at] != _OPEN or rows >= max_rows or row + rows >= cells.shape[1]:
                    return ODD
                at, code, high = _row(
                    text, at, end, row + rows, names, offsets, kinds, shape, cells, floats, stops, states
                )
                found[HIGH] |= high
                if code != READ:
                    return ODD if rows else code
                rows += 1
                at = _space(text, at, end)
            if at >= end:
                return ODD
            at += 1
        elif size == 4 and _word(text, key, close, b"user") >= 0:
            if found[USER_END] or text[at] != _OPEN:
                return ODD
            found[USER] = at
            at = _skip(text, at, end)
            if at < 0:
                return ODD
            found[USER_END] = at
        elif size == 10 and _word(text, key, close, b"on_bad_row") >= 0:
            if _word(text, at, end, b'"null"') >= 0:
                found[NULLS] = 1
                at += 6
            elif _word(text, at, end, b'"error"') >= 0:
                found[NULLS] = 0
                at += 7
            else:
                return ODD
        else:
            return ODD
        at = _space(text, at, end)
    if at >= end or _space(text, at + 1, end) != end:
        return ODD
    if rows <= 0 or (items != 0) != (found[USER_END] != 0):
        return ODD
    found[ROWS] = rows
    return READ


@cached_njit(nogil=True)
def read_bodies(
    text: Any, ends: Any, wanted: Any, max_rows: Any, names: Any, offsets: Any, kinds: Any, shape: Any,
    cells: Any, stops: Any, states: Any, found: Any,
) -> Any:  # fmt: skip
    """Read bodies that lie one after another in `text`, the wanted ones; returns the number of rows.

    Args:
        text: bytes.
        ends: where each body ends.
        wanted: the number of each body that is to be read.
        max_rows: bodies with more are odd.
        names: the columns' names, one after another.
        offsets: where each name begins, and the last ends.
        kinds: of the columns.
        shape: int64 [columns + 1], −1 in the first place: takes the keys that all rows must have.
        cells: int64 [columns, rows], takes integers, the bits of floats, and where texts begin.
        stops: int64 [columns, rows], takes where texts end.
        states: uint8 [columns, rows], takes how cells are to be understood.
        found: int64 [bodies, FOUND], takes what became of each.
    """
    row = 0
    floats = cells.view(np.float64)
    for body in wanted:
        begin = ends[body - 1] if body else 0
        found[body, :] = 0
        code = _body(
            text, begin, ends[body], row, max_rows, names, offsets, kinds, shape, cells, floats, stops,
            states, found[body],
        )  # fmt: skip
        found[body, CODE] = code
        if code == READ:
            found[body, FIRST] = row
            row += found[body, ROWS]
        elif row == 0:
            shape[0] = -1  # it was the shape of a body that is not read
    return row


@cached_njit(nogil=True)
def tally(states: Any, columns: Any, rows: Any) -> Any:
    """The nulls of each column, and the floats of all that are left to another reader."""
    nulls = np.zeros(len(columns), np.int64)
    hard = 0
    for at in range(len(columns)):
        for row in range(rows):
            nulls[at] += states[columns[at], row] == NULL
            hard += states[columns[at], row] == HARD
    return nulls, hard


@cached_njit(nogil=True)
def gather_texts(text: Any, columns: Any, rows: Any, cells: Any, stops: Any, offsets: Any) -> Any:
    """The bytes of text columns, one column after another.

    offsets: int32 [columns, rows + 1], takes where each text begins within its column. A null has none.
    """
    total = 0
    for at in range(len(columns)):
        column = columns[at]
        size = 0
        offsets[at, 0] = 0
        for row in range(rows):
            size += stops[column, row] - cells[column, row]
            offsets[at, row + 1] = size
        total += size
    data = np.empty(total, np.uint8)
    place = 0
    for column in columns:
        for row in range(rows):
            for at in range(cells[column, row], stops[column, row]):
                data[place] = text[at]
                place += 1
    return data
