"""Encodes all plain features of some rows in one call, straight from Arrow's memory.

For every value it gives what `recgrad.data.features` gives. A feature with a value that is more than
a plain one (several values in a text, an id out of range, an infinite number …) is marked as odd and
left to that code, which also has the words for what is wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from recgrad.data.hashing import write_decimal, xxh64
from recgrad.data.murmur64 import murmur64
from recgrad.data.plain import layout as at
from recgrad.kernels import simd
from recgrad.kernels.parallel import FIRST as FIRST_ARGUMENT
from recgrad.kernels.simd import field, load_f64, load_i64, load_u8, pointer, store_i64

# The kernel's arguments: sizes, then addresses.
(
    ROWS,
    ARRAY,  # struct ArrowArray of the rows; 0 where COLUMNS are filled in
    SHARED_ARRAY,  # of the one row that they share, or 0
    COLUMN_COUNT,
    PLACES,
    COLUMNS,
    FEATURE_COUNT,
    FEATURES,
    FLOATS,
    IDS,  # int64 [id features, rows]
    NUMBERS,  # float32 [rows, dense features]
    WIDTH,  # of NUMBERS
    ODD,  # int64 [features], 1 for those that are left to others
) = range(FIRST_ARGUMENT, FIRST_ARGUMENT + 13)
ARGUMENTS = FIRST_ARGUMENT + 13

_ALL_MEMORY = 1 << 62
_TEXT_BYTES = 24
_BEYOND_INT64 = 2.0**63


@njit(nogil=True)
def _find_columns(a: int) -> None:
    """Fill in where columns lie."""
    for i in range(field(a, COLUMN_COUNT)):
        place = field(a, PLACES) + 8 * at.PLACE_COLUMNS * i
        line = field(a, COLUMNS) + 8 * at.COLUMN_COLUMNS * i
        array = field(a, SHARED_ARRAY) if field(place, at.SHARED) else field(a, ARRAY)
        child = field(field(array, at.ARROW_CHILDREN), field(place, at.CHILD))
        buffers = field(child, at.ARROW_BUFFERS)
        kind = field(place, at.COLUMN_KIND)
        if kind == at.NONE:
            continue
        store_i64(line + 8 * at.VALID, load_i64(buffers) if field(child, at.ARROW_NULLS) != 0 else 0)
        store_i64(line + 8 * at.VALUES, field(buffers, 1))
        store_i64(line + 8 * at.VALID_BYTES, 0)
        store_i64(line + 8 * at.FIRST, field(array, at.ARROW_OFFSET) + field(child, at.ARROW_OFFSET))
        if kind >= at.TEXT:
            store_i64(line + 8 * at.DATA, field(buffers, 2))


@njit(nogil=True)
def _is_null(column: int, i: int) -> bool:
    valid = field(column, at.VALID)
    if valid == 0:
        return False
    if field(column, at.VALID_BYTES) != 0:
        return load_u8(valid + i) == 0
    return (load_u8(valid + (i >> 3)) >> (i & 7)) & 1 == 0


@njit(nogil=True)
def _integer(kind: int, values: int, i: int) -> Any:
    """Value i of a column of integers."""
    if kind == at.INT64:
        return load_i64(values + 8 * i)
    if kind == at.INT32:
        return np.int64(simd.load_i32(values + 4 * i))
    if kind == at.INT16:
        return np.int64(simd.load_i16(values + 2 * i))
    if kind == at.INT8:
        return np.int64(simd.load_s8(values + i))
    if kind == at.UINT32:
        return np.int64(simd.load_u32(values + 4 * i))
    if kind == at.UINT16:
        return np.int64(simd.load_u16(values + 2 * i))
    if kind == at.UINT8:
        return np.int64(load_u8(values + i))
    return np.int64((load_u8(values + (i >> 3)) >> (i & 7)) & 1)


@njit(nogil=True)
def _number(kind: int, values: int, i: int) -> Any:
    """Value i of a column of floats, as float64."""
    if kind == at.FLOAT32:
        return np.float64(simd.load1(values + 4 * i))
    number = load_f64(values + 8 * i)
    return np.float64(np.float32(number)) if kind == at.WIDE_FLOAT32 else number


@njit(nogil=True)
def _span(kind: int, column: int, i: int) -> Any:
    """Where text i begins and ends."""
    offsets = field(column, at.VALUES)
    if kind == at.SPANS:
        return load_i64(offsets + 8 * i), field(field(column, at.ENDS), i)
    if kind == at.TEXT:
        return np.int64(simd.load_i32(offsets + 4 * i)), np.int64(simd.load_i32(offsets + 4 * i + 4))
    return load_i64(offsets + 8 * i), load_i64(offsets + 8 * i + 8)


@njit(nogil=True)
def _occurs(data: Any, begin: int, end: int, mark: int, size: int) -> bool:
    """Whether the `size` bytes at an address occur in a span."""
    first = load_u8(mark)
    for i in range(begin, end - size + 1):
        if data[i] == first:
            k = 1
            while k < size and data[i + k] == load_u8(mark + k):
                k += 1
            if k == size:
                return True
    return False


@njit(nogil=True)
def _parse(data: Any, begin: int, end: int) -> Any:
    """A decimal integer, and whether the text is one; as `recgrad.data.features.text` reads them."""
    while begin < end and data[begin] == 32:
        begin += 1
    while end > begin and data[end - 1] == 32:
        end -= 1
    negative = begin < end and data[begin] == 45
    if begin < end and (data[begin] == 45 or data[begin] == 43):
        begin += 1
    if begin == end or end - begin > 19:
        return np.int64(0), False
    value = np.uint64(0)
    for i in range(begin, end):
        if data[i] < 48 or data[i] > 57:
            return np.int64(0), False
        value = value * np.uint64(10) + np.uint64(data[i] - 48)
    if value > np.uint64(0x7FFFFFFFFFFFFFFF):
        return np.int64(0), False
    return -np.int64(value) if negative else np.int64(value), True


@njit(nogil=True)
def _word(feature: int, data: Any, begin: int, end: int) -> int:
    """The id of a text in a vocabulary."""
    words = carray(pointer(field(feature, at.WORDS)), _ALL_MEMORY, np.uint8)
    slots, last = field(feature, at.SLOTS), field(feature, at.SLOT_COUNT) - 1
    slot = np.int64(xxh64(data, begin, end) & np.uint64(last))
    while True:
        word = field(slots, slot)
        if word < 0:
            return field(feature, at.UNKNOWN)
        start = field(field(feature, at.WORD_STARTS), word)
        if field(field(feature, at.WORD_ENDS), word) - start == end - begin:
            k = 0
            while k < end - begin and words[start + k] == data[begin + k]:
                k += 1
            if k == end - begin:
                return field(field(feature, at.WORD_IDS), word)
        slot = (slot + 1) & last


@njit(nogil=True)
def _id_of_text(feature: int, data: Any, begin: Any, end: Any) -> Any:
    """The id of a text that is hashed or looked up as it is."""
    makes = field(feature, at.MAKES)
    if makes == at.XXH64:
        return np.int64(xxh64(data, begin, end) % np.uint64(field(feature, at.SIZE)))
    if makes == at.MURMUR64:
        return np.int64(murmur64(data, begin, end) % np.uint64(field(feature, at.SIZE)))
    return _word(feature, data, begin, end)


@njit(nogil=True)
def _integers(kind: int, column: int, i: int, data: Any) -> Any:
    """Value i as an integer, and whether it is one."""
    values = field(column, at.VALUES)
    if kind < at.FLOAT32:
        return _integer(kind, values, i), True
    if kind < at.TEXT:
        number = _number(kind, values, i)
        if not abs(number) < _BEYOND_INT64:
            return np.int64(0), False
        whole = np.int64(number)
        return whole, np.float64(whole) == number
    begin, end = _span(kind, column, i)
    return _parse(data, begin, end)


@njit(nogil=True)
def _ids(feature: int, column: int, kind: int, rows: int, out: int) -> bool:
    """Ids of a feature, a number each; False if the feature is odd."""
    makes, size, default = field(feature, at.MAKES), field(feature, at.SIZE), field(feature, at.DEFAULT)
    first = field(column, at.FIRST)
    mark, mark_bytes = field(feature, at.SEPARATOR), field(feature, at.SEPARATOR_BYTES)
    whole = kind < at.TEXT or makes == at.NUM_BUCKETS or field(feature, at.AS_INTEGERS) != 0
    data = carray(pointer(field(column, at.DATA)), _ALL_MEMORY, np.uint8)
    decimal = np.empty(_TEXT_BYTES, np.uint8)
    # Hashes are large: one call of them serves texts of the column and decimals that are written here.
    text = carray(pointer(simd.address(decimal) if whole else field(column, at.DATA)), _ALL_MEMORY, np.uint8)
    for row in range(rows):
        i = first + row
        missing = _is_null(column, i)
        begin, end = 0, 0
        if kind >= at.TEXT and not missing:
            begin, end = _span(kind, column, i)
            missing = begin == end
            if mark_bytes > 0 and _occurs(data, begin, end, mark, mark_bytes):
                return False
        found = default
        if whole and not missing:
            found, good = _integers(kind, column, i, data)
            if not good or (makes == at.NUM_BUCKETS and (found < 0 or found >= size)):
                return False
            if makes != at.NUM_BUCKETS:
                begin, end = write_decimal(found, decimal, _TEXT_BYTES), _TEXT_BYTES
        if makes != at.NUM_BUCKETS and not missing:
            found = _id_of_text(feature, text, begin, end)
        store_i64(out + 8 * row, found)
    return True


@njit(nogil=True)
def _bucket(edges: int, single: bool, count: int, value: float) -> int:
    """The number of boundaries that are not above a value."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        edge = np.float64(simd.load1(edges + 4 * middle)) if single else load_f64(edges + 8 * middle)
        if edge <= value:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True)
def _numbers(
    feature: int, floats: int, column: int, kind: int, rows: int, repeat: int, out: int, step: int
) -> bool:
    """Numbers of a dense feature, `repeat` times if it is of the shared row; False if the feature is odd."""
    values, first = field(column, at.VALUES), field(column, at.FIRST)
    normalizes = field(feature, at.NORMALIZES) != 0
    shift, scale = load_f64(floats + 8 * at.SHIFT), load_f64(floats + 8 * at.SCALE)
    default = np.float32(load_f64(floats + 8 * at.DEFAULT_NUMBER))
    for row in range(rows):
        i = first + row
        if _is_null(column, i):
            if field(feature, at.DEFAULT) == 0:
                return False
            value = default
        elif normalizes:
            number = np.float64(_integer(kind, values, i)) if kind < at.FLOAT32 else _number(kind, values, i)
            value = np.float32((number - shift) / scale)
        elif kind < at.FLOAT32:
            value = np.float32(_integer(kind, values, i))
        else:
            value = np.float32(_number(kind, values, i))
        if not np.isfinite(value):
            return False
        simd.store(out + row * step, value)
    if repeat > rows:
        value = simd.load1(out)
        for row in range(1, repeat):
            simd.store(out + row * step, value)
    return True


@njit(nogil=True)
def _buckets(feature: int, floats: int, column: int, kind: int, rows: int, out: int) -> bool:
    """Ids of the buckets that numbers fall in; False if the feature is odd."""
    values, first = field(column, at.VALUES), field(column, at.FIRST)
    normalizes = field(feature, at.NORMALIZES) != 0
    shift, scale = load_f64(floats + 8 * at.SHIFT), load_f64(floats + 8 * at.SCALE)
    single = (kind == at.FLOAT32 or kind == at.WIDE_FLOAT32) and not normalizes
    edges = field(feature, at.SINGLE_EDGES) if single else field(feature, at.EDGES)
    default = field(feature, at.SINGLE_DEFAULT) if single else field(feature, at.DEFAULT)
    for row in range(rows):
        i = first + row
        found = default
        if not _is_null(column, i):
            number = np.float64(_integer(kind, values, i)) if kind < at.FLOAT32 else _number(kind, values, i)
            if normalizes:
                number = (number - shift) / scale
            if not np.isfinite(number):
                return False
            found = _bucket(edges, single, field(feature, at.EDGE_COUNT), number)
        store_i64(out + 8 * row, found)
    return True


@njit(nogil=True)
def encode_rows(a: int) -> None:
    """Encode every feature, or mark it as odd."""
    if field(a, ARRAY) != 0:
        _find_columns(a)
    for i in range(field(a, FEATURE_COUNT)):
        feature = field(a, FEATURES) + 8 * at.FEATURE_COLUMNS * i
        floats = field(a, FLOATS) + 8 * at.FLOAT_COLUMNS * i
        number = field(feature, at.COLUMN)
        place = field(a, PLACES) + 8 * at.PLACE_COLUMNS * number
        column = field(a, COLUMNS) + 8 * at.COLUMN_COLUMNS * number
        kind, makes = field(place, at.COLUMN_KIND), field(feature, at.MAKES)
        rows = 1 if field(place, at.SHARED) != 0 else field(a, ROWS)
        good = kind != at.NONE and (kind < at.TEXT or makes > at.BOUNDARIES)
        if good and makes == at.DENSE:
            out = field(a, NUMBERS) + 4 * field(feature, at.PLACE)
            repeat, step = field(a, ROWS), 4 * field(a, WIDTH)
            good = _numbers(feature, floats, column, kind, rows, repeat, out, step)
        elif good:
            out = field(a, IDS) + 8 * field(a, ROWS) * field(feature, at.PLACE)
            if makes == at.BOUNDARIES:
                good = _buckets(feature, floats, column, kind, rows, out)
            else:
                good = _ids(feature, column, kind, rows, out)
        store_i64(field(a, ODD) + 8 * i, 0 if good else 1)
