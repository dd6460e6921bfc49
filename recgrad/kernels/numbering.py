"""Numbering the ids of a batch: each distinct id of a field gets a code, in the order of appearance.

    ids      7 2 7 9 2 7
    codes    0 1 0 2 1 0        of each row
    firsts   0 1 3              the row where each code first appears
    keys     7 2 9              the id of each code
    order    (0,0) (0,2) (0,5) (1,1) (1,4) (2,3)
             (code, place in its chunk of CHUNK rows) of each chunk by code, equal codes in the order of rows:
             whoever adds up rows by code so keeps a sum in registers, and adds in one order

A field with more distinct ids than its limit, or with several ids in a row, is given up: NOT_FEW. Rows
without an id share the code of the id MISSING, or are left out and have the code NO_CODE.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from recgrad.kernels.compile import Wanted, compiled
from recgrad.kernels.parallel import FIRST, launch, next_task
from recgrad.kernels.simd import address, field, load_i32, load_i64, store_i32, store_i64

CHUNK_BITS = 10
CHUNK = 1 << CHUNK_BITS  # rows: four vectors of each lie in the second cache
MISSING = -(1 << 63)  # the id of a row without one
NOT_FEW = -1
NO_CODE = -1
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)

Array = npt.NDArray[np.int64]


class Numbered(NamedTuple):
    """The codes of some fields.

    Attributes:
        counts: int64 [fields], how many distinct ids there are, or NOT_FEW.
        codes: int32 [fields, rows].
        firsts: int32 [fields, the largest limit].
        keys: int64, as firsts; MISSING for rows without an id, unless they are left out.
        order: int32 [fields, rows], code · CHUNK + place in the chunk; None where it was not asked for.
    """

    counts: Array
    codes: npt.NDArray[np.int32]
    firsts: npt.NDArray[np.int32]
    keys: Array
    order: npt.NDArray[np.int32] | None


def number_ids(
    rows: int, ids: Array, lengths: Array, limits: Array, *, ordered: bool, leave_missing: bool = False
) -> Numbered:
    """Number the ids of fields.

    Args:
        rows: of the batch.
        ids: [fields], where the ids of each are: int64, one for each row that has one.
        lengths: [fields], where the number of ids of each row is: int32; 0 for one in each.
        limits: [fields], of distinct ids.
        ordered: whether to sort rows by code.
        leave_missing: leave out rows without an id; not where rows are sorted.
    """
    assert not (ordered and leave_missing)
    fields, most = len(ids), max(int(limits.max(initial=0)), 1)
    codes = np.empty((fields, rows), np.int32)
    order = np.empty((fields, rows), np.int32) if ordered else None
    firsts, keys = np.empty((fields, most), np.int32), np.empty((fields, most), np.int64)
    counts = np.empty(fields, np.int64)
    launch(
        compiled(number_tasks),
        *(fields, rows, limits, most, 4 << (most - 1).bit_length()),
        *(ids, lengths, codes, firsts, keys, counts, 0 if order is None else order, int(leave_missing)),
        tasks=fields,
    )
    return Numbered(counts, codes, firsts, keys, order)


def kernels() -> list[Wanted]:
    """What it needs compiled."""
    return [Wanted(number_tasks)]


(FIELDS, ROWS, LIMITS, MOST, PLACES, IDS, LENGTHS, CODES, FIRSTS, KEYS, COUNTS, ORDER, LEAVE_MISSING) = range(
    FIRST, FIRST + 13
)


@njit(nogil=True)
def _number(table, places, ids, lengths, rows, limit, codes, firsts, keys, leave):  # type: ignore[no-untyped-def]
    """Number the ids of one field; how many there are, or NOT_FEW where that is above the limit."""
    for place in range(places):
        store_i32(table + 4 * place, -1)
    count = 0
    for r in range(rows):
        key = np.int64(MISSING)
        length = 1 if lengths == 0 else load_i32(lengths + 4 * r)
        if length > 1:
            return NOT_FEW
        if length == 1:
            key = load_i64(ids)
            ids += 8
        elif leave != 0:
            store_i32(codes + 4 * r, NO_CODE)
            continue
        place = ((key * _GOLDEN) >> 32) & (places - 1)
        code = load_i32(table + 4 * place)
        while code >= 0 and load_i64(keys + 8 * code) != key:
            place = (place + 1) & (places - 1)
            code = load_i32(table + 4 * place)
        if code < 0:
            if count == limit:
                return NOT_FEW
            code = count
            store_i32(table + 4 * place, code)
            store_i64(keys + 8 * code, key)
            store_i32(firsts + 4 * code, r)
            count += 1
        store_i32(codes + 4 * r, code)
    return count


@njit(nogil=True)
def _arrange(codes, rows, count, ends, order):  # type: ignore[no-untyped-def]
    """order ← code · CHUNK + place in the chunk, of each chunk by code, equal ones in the order of rows."""
    for first in range(0, rows, CHUNK):
        last = min(first + CHUNK, rows)
        for code in range(count):
            store_i32(ends + 4 * code, 0)
        for r in range(first, last):
            at = ends + 4 * load_i32(codes + 4 * r)
            store_i32(at, load_i32(at) + 1)
        total = first
        for code in range(count):
            size = load_i32(ends + 4 * code)
            store_i32(ends + 4 * code, total)
            total += size
        for r in range(first, last):
            code = load_i32(codes + 4 * r)
            place = load_i32(ends + 4 * code)
            store_i32(ends + 4 * code, place + 1)
            store_i32(order + 4 * place, (code << CHUNK_BITS) | (r - first))


@njit(nogil=True)
def number_tasks(a: int) -> None:
    """A field each."""
    rows, most, places = field(a, ROWS), field(a, MOST), field(a, PLACES)
    table = np.empty(places, np.int32)
    task = next_task(a)
    while task < field(a, FIELDS):
        codes, order = field(a, CODES) + 4 * rows * task, field(a, ORDER) + 4 * rows * task
        count = _number(
            address(table), places, field(field(a, IDS), task), field(field(a, LENGTHS), task), rows,
            field(field(a, LIMITS), task), codes, field(a, FIRSTS) + 4 * most * task,
            field(a, KEYS) + 8 * most * task, field(a, LEAVE_MISSING),
        )  # fmt: skip
        store_i64(field(a, COUNTS) + 8 * task, count)
        if count > 0 and field(a, ORDER) != 0:
            _arrange(codes, rows, count, address(table), order)
        task = next_task(a)
