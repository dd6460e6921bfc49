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
from recgrad.kernels.simd import address, load_u8, load_word, store_f64, store_i64, store_u8
from recgrad.serving.json_numbers import EXACT, quotient_of, read_number

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

_MANTISSA = 1 << 53
_QUOTE, _BACKSLASH, _COLON, _COMMA, _MINUS, _ZERO = 34, 92, 58, 44, 45, 48
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = 123, 125, 91, 93
_BLANK = 32


@cached_njit(nogil=True)
def _space(text: Any, at: Any, end: Any) -> Any:
    """The first place from `at` on that is no white space."""
    while at < end:
        byte = load_u8(text + at)
        if byte > _BLANK or (byte != _BLANK and byte != 10 and byte != 13 and byte != 9):
            break
        at += 1
    return at


@cached_njit(nogil=True)
def _string(text: Any, at: Any, end: Any) -> Any:
    """The closing quote of the text that begins at `at`, −1 for an odd one; and its bytes over 127."""
    high = 0
    at += 1
    while at < end:
        byte = load_u8(text + at)
        if byte == _QUOTE:
            return at, high
        if byte == _BACKSLASH or byte < _BLANK:
            return -1, high
        high |= byte & 128
        at += 1
    return -1, high


@cached_njit(nogil=True)
def _equal(a: Any, b: Any, size: Any) -> Any:
    """Whether `size` bytes at two addresses are the same."""
    at = 0
    while at + 8 <= size:
        if load_word(a + at) != load_word(b + at):
            return False
        at += 8
    if at < size and size >= 8:  # the last eight, of which some were seen already
        return load_word(a + size - 8) == load_word(b + size - 8)
    while at < size:
        if load_u8(a + at) != load_u8(b + at):
            return False
        at += 1
    return True


@cached_njit(nogil=True)
def _word(text: Any, at: Any, end: Any, word: Any) -> Any:
    """The place after a word, or −1."""
    if end - at < len(word):
        return -1
    for i in range(len(word)):
        if load_u8(text + at + i) != word[i]:
            return -1
    return at + len(word)


@cached_njit(nogil=True, inline="always")
def _value(text: Any, at: Any, end: Any, kind: Any, cell: Any, stop: Any, state: Any) -> Any:
    """Read one value into its cell; returns the place after it, −1 for an odd one, and bits as in `found`.

    cell, stop and state are addresses.
    """
    byte = load_u8(text + at)
    if byte == _MINUS or _ZERO <= byte <= _ZERO + 9:
        if kind > FLOAT:
            return -1, 0
        store_u8(state, np.uint8(VALUE))
        begin = at
        at, mantissa, power, negative, form = read_number(text, at, end)
        if at < 0:
            return -1, 0
        if kind == INT:
            if form:
                return -1, 0
            store_i64(cell, -mantissa if negative else mantissa)
            return at, 0
        if form == 0 and mantissa <= _MANTISSA:
            store_f64(cell, np.float64(-mantissa if negative else mantissa))
            return at, 0
        if form == 1 and mantissa <= _MANTISSA and -22 <= power <= 22:
            value = np.float64(mantissa)
            value = value / EXACT[-power] if power < 0 else value * EXACT[power]
            store_f64(cell, -value if negative else value)
            return at, 0
        if form == 1 and -22 <= power < 0:
            value, certain = quotient_of(mantissa, EXACT[-power])
            if certain:
                store_f64(cell, -value if negative else value)
                return at, 0
        if form == 0:
            return -1, 0
        store_u8(state, np.uint8(HARD))
        store_i64(cell, begin)
        store_i64(stop, at)
        return at, HAS_HARD
    if byte == 110:
        store_u8(state, np.uint8(NULL))
        store_i64(cell, 0)
        store_i64(stop, 0)
        return _word(text, at, end, b"null"), 0
    store_u8(state, np.uint8(VALUE))
    if byte == _QUOTE:
        close, high = _string(text, at, end)
        if kind != TEXT or close < 0:
            return -1, 0
        store_i64(cell, at + 1)
        store_i64(stop, close)
        return close + 1, high
    if kind == BOOL and byte == 116:
        store_i64(cell, 1)
        return _word(text, at, end, b"true"), 0
    if kind == BOOL and byte == 102:
        store_i64(cell, 0)
        return _word(text, at, end, b"false"), 0
    return -1, 0


@cached_njit(nogil=True)
def _key(
    text: Any, at: Any, end: Any, number: Any, names: Any, offsets: Any, columns: Any, shape: Any
) -> Any:
    """(place of the value, code, column) of the key at `at`, the `number`-th of its row."""
    if at >= end or load_u8(text + at) != _QUOTE:
        return at, ODD, -1
    column, close = -1, -1
    if 0 <= number < shape[0]:  # the key that the other rows have here; no name in `shape` has a quote
        column = shape[1 + number]
        size = offsets[column + 1] - offsets[column]
        close = at + 1 + size
        if (
            close >= end
            or load_u8(text + close) != _QUOTE
            or not _equal(text + at + 1, names + offsets[column], size)
        ):
            close = -1
    if close < 0:
        close, _ = _string(text, at, end)
        if close < 0:
            return at, ODD, -1
        if shape[0] >= 0:
            return at, OTHER_SHAPE, -1
        column = -1
        for one in range(columns):
            size = offsets[one + 1] - offsets[one]
            if size == close - at - 1 and _equal(text + at + 1, names + offsets[one], size):
                column = one
        for one in range(number):
            if shape[1 + one] == column:
                column = -1
        if column < 0:
            return at, ODD, -1
        shape[1 + number] = column
    at = _space(text, close + 1, end)
    if at >= end or load_u8(text + at) != _COLON:
        return at, ODD, -1
    at = _space(text, at + 1, end)
    return at, (READ if at < end else ODD), column


@cached_njit(nogil=True)
def _row(
    text: Any, at: Any, end: Any, row: Any, names: Any, offsets: Any, kinds: Any, shape: Any, glue: Any,
    cells: Any, stops: Any, states: Any, room: Any,
) -> Any:  # fmt: skip
    """Read the object at `at` as a row; returns the place after it, a code, and bits as in `found`.

    shape[0] is the number of keys of a row, shape[1 + j] the column of the j-th; −1 before the first row.
    What stands between two values is nearly always what stood there in the row before, and is then
    compared as a whole: glue[j] is where that began before the j-th value, and how long it is.
    """
    high = 0
    number = 0
    while True:
        column = -1
        if number < shape[0]:
            begin, size = glue[number, 0], glue[number, 1]
            if at + size < end and _equal(text + at, text + begin, size):
                column = shape[1 + number]
                at += size
        if column < 0:
            begin = at
            at = _space(text, at + (number == 0), end)
            if at >= end:
                return at, ODD, high
            byte = load_u8(text + at)
            if byte == _CLOSE:
                break
            if number:
                if byte != _COMMA:
                    return at, ODD, high
                at = _space(text, at + 1, end)
            at, code, column = _key(text, at, end, number, names, offsets, len(kinds), shape)
            if code != READ:
                return at, code, high
            glue[number, 0], glue[number, 1] = begin, at - begin
        place = column * room + row
        at, more = _value(text, at, end, kinds[column], cells + 8 * place, stops + 8 * place, states + place)
        if at < 0:
            return at, ODD, high
        high |= more
        number += 1
    if number == 0:
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
        byte = load_u8(text + at)
        if byte == _QUOTE:
            at += 1
            while at < end and load_u8(text + at) != _QUOTE:
                at += 2 if load_u8(text + at) == _BACKSLASH else 1
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
def _rows(
    text: Any, at: Any, end: Any, row: Any, max_rows: Any, names: Any, offsets: Any, kinds: Any, shape: Any,
    glue: Any, cells: Any, stops: Any, states: Any, room: Any, found: Any,
) -> Any:  # fmt: skip
    """Read the list of rows at `at`; returns the place after it, a code, and how many there are."""
    rows = 0
    at = _space(text, at + 1, end)
    while at < end and load_u8(text + at) != _CLOSE_LIST:
        if rows:
            if load_u8(text + at) != _COMMA:
                return at, ODD, rows
            at = _space(text, at + 1, end)
        if at >= end or load_u8(text + at) != _OPEN or rows >= max_rows or row + rows >= room:
            return at, ODD, rows
        at, code, high = _row(
            text, at, end, row + rows, names, offsets, kinds, shape, glue, cells, stops, states, room
        )
        found[HIGH] |= high
        if code != READ:
            return at, (ODD if rows else code), rows
        rows += 1
        at = _space(text, at, end)
    return at + 1, (READ if at < end else ODD), rows


@cached_njit(nogil=True)
def _on_bad_row(text: Any, at: Any, end: Any) -> Any:
    """The place after what is asked for bad rows, −1 for an odd one, and whether it is nulls."""
    after = _word(text, at, end, b'"null"')
    if after >= 0:
        return after, 1
    return _word(text, at, end, b'"error"'), 0


@cached_njit(nogil=True)
def read_body(
    text: Any, at: Any, end: Any, row: Any, max_rows: Any, names: Any, offsets: Any, kinds: Any, shape: Any,
    glue: Any, cells: Any, stops: Any, states: Any, room: Any, found: Any,
) -> Any:  # fmt: skip
    """Read one body; returns the code. `found` is its line of what was found."""
    rows, items = -1, 0
    at = _space(text, at, end)
    if at >= end or load_u8(text + at) != _OPEN:
        return ODD
    at = _space(text, at + 1, end)
    first = True
    while at < end and load_u8(text + at) != _CLOSE:
        if not first:
            if load_u8(text + at) != _COMMA:
                return ODD
            at = _space(text, at + 1, end)
        first = False
        if at >= end or load_u8(text + at) != _QUOTE:
            return ODD
        close, _ = _string(text, at, end)
        if close < 0:
            return ODD
        key, size = at + 1, close - at - 1
        at = _space(text, close + 1, end)
        if at >= end or load_u8(text + at) != _COLON:
            return ODD
        at = _space(text, at + 1, end)
        if at >= end:
            return ODD
        is_items = size == 5 and _word(text, key, close, b"items") >= 0
        if is_items or (size == 4 and _word(text, key, close, b"rows") >= 0):
            if rows >= 0 or load_u8(text + at) != _OPEN_LIST:
                return ODD
            items = is_items
            at, code, rows = _rows(
                text, at, end, row, max_rows, names, offsets, kinds, shape, glue, cells, stops, states, room,
                found,
            )  # fmt: skip
            if code != READ:
                return code
        elif size == 4 and _word(text, key, close, b"user") >= 0:
            if found[USER_END] or load_u8(text + at) != _OPEN:
                return ODD
            found[USER] = at
            at = _skip(text, at, end)
            if at < 0:
                return ODD
            found[USER_END] = at
        elif size == 10 and _word(text, key, close, b"on_bad_row") >= 0:
            at, found[NULLS] = _on_bad_row(text, at, end)
            if at < 0:
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
    room = cells.shape[1]
    glue = np.zeros((len(kinds), 2), np.int64)
    addresses = address(text), address(names), address(cells), address(stops), address(states)
    for body in wanted:
        begin = ends[body - 1] if body else 0
        found[body, :] = 0
        code = read_body(
            addresses[0], begin, ends[body], row, max_rows, addresses[1], offsets, kinds, shape, glue,
            addresses[2], addresses[3], addresses[4], room, found[body],
        )  # fmt: skip
        found[body, CODE] = code
        if code == READ:
            found[body, FIRST] = row
            row += found[body, ROWS]
        elif row == 0:
            shape[0] = -1  # it was the shape of a body that is not read
    return row
