"""Reads JSON bodies into cells that lie where they always do; `json_kernel` with all arguments in a block."""

from __future__ import annotations

import numpy as np
from numba import carray, njit, types

from recgrad.kernels.simd import field, load_i64, pointer, store_i64
from recgrad.serving.json_kernel import (
    CODE,
    FIRST,
    FOUND,
    HAS_HARD,
    HAS_HIGH,
    HIGH,
    NULLS,
    READ,
    ROWS,
    USER_END,
    read_body,
)

SIGNATURE = types.void(types.int64, types.int64)
"""Of `read_cells`: the addresses of its arguments and of the text."""

# The kernel's arguments: sizes, then addresses.
(
    BODIES,  # how many there are
    COLUMNS,
    ROOM,  # rows of cells
    MAX_ROWS,  # of a body
    ENDS,  # int64 [bodies], where each ends in the text
    NAMES,
    OFFSETS,  # int64 [columns + 1], of names
    KINDS,  # int64 [columns]
    SHAPE,  # int64 [columns + 1], takes the keys of rows
    CELLS,
    STOPS,
    STATES,
    FOUND_AT,  # int64 [bodies, FOUND]
    LIMITS,  # int64 [columns, 2]: smallest and largest integer
    RESULT,  # int64 [2]: rows of all bodies, −1 if one must be read in another way; HAS_HIGH or 0
) = range(15)


@njit(nogil=True)
def read_cells(a: int, text: int) -> None:
    """Read every body, or say that it cannot be done here; texts in cells begin and end at addresses."""
    columns, room, bodies = field(a, COLUMNS), field(a, ROOM), field(a, BODIES)
    offsets = carray(pointer(field(a, OFFSETS)), columns + 1, np.int64)
    kinds = carray(pointer(field(a, KINDS)), columns, np.int64)
    shape = carray(pointer(field(a, SHAPE)), columns + 1, np.int64)
    found = carray(pointer(field(a, FOUND_AT)), (bodies, FOUND), np.int64)
    glue = np.zeros((columns, 2), np.int64)
    result = field(a, RESULT)
    store_i64(result, -1)
    shape[0] = -1
    begin, rows, high = text, 0, 0
    for body in range(bodies):
        end = text + load_i64(field(a, ENDS) + 8 * body)
        found[body, :] = 0
        code = read_body(
            0, begin, end, rows, field(a, MAX_ROWS), field(a, NAMES), offsets, kinds, shape,
            glue, field(a, CELLS), field(a, STOPS), field(a, STATES), room, found[body],
        )  # fmt: skip
        found[body, CODE], found[body, FIRST] = code, rows
        high |= found[body, HIGH]
        # A user, nulls for bad rows and floats of many digits are read in other ways.
        if code != READ or found[body, USER_END] != 0 or found[body, NULLS] != 0 or high & HAS_HARD:
            return
        rows += found[body, ROWS]
        begin = end
    if shape[0] != columns or not _fit(a, columns, room, rows):
        return
    store_i64(result, rows)
    store_i64(result + 8, high & HAS_HIGH)


@njit(nogil=True)
def _fit(a: int, columns: int, room: int, rows: int) -> bool:
    """Whether every integer fits its column."""
    for column in range(columns):
        low, high = load_i64(field(a, LIMITS) + 16 * column), load_i64(field(a, LIMITS) + 16 * column + 8)
        if low < high:
            for row in range(rows):
                value = load_i64(field(a, CELLS) + 8 * (column * room + row))
                if value < low or value > high:
                    return False
    return True
