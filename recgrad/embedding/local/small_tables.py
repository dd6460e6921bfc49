"""Tables with fewer rows than a batch has ids for them: gradients are summed while the plan is made.

    ids 2 0 2 3 0 2 of a table with four rows, gradients g0 … g5

    sums      g1+g4 │ −0 │ g0+g2+g5 │ g3       a line for each row, which stay in the core's own cache
    flags       1     0       1        1       rows that the batch has
    lists     of rows 0, 2 and 3, one address each: that of the sum

Why: with lists an update reads the gradients of a row from anywhere in the batch, in a loop of whose length
the processor knows nothing. Here they are read in the order of the batch, without a branch that could be
foreseen wrongly, and the update goes through the table in order. Sums are those of lists, bit for bit: each
begins with −0, to which a number adds as it is, and goes on in the order of the batch.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from recgrad.embedding.local.layout import BAGS, FROZEN, IDS, INDEX, OFFSETS, ROWS, VECTOR_STRIDE, VECTORS
from recgrad.embedding.local.rows import prefetch_row
from recgrad.kernels import simd
from recgrad.kernels.simd import field, load_i32, load_i64, store_i32, store_i64

SUM_BYTES = 512 << 10  # of a table's sums: half of what a core of a server has for itself
AHEAD = 32  # gradients between asking for one and adding it
_NEGATIVE_ZERO = np.float32(-0.0)


@njit(nogil=True)
def room_for_sums(table: int, occurrences: int, dim: int) -> int:
    """Lines for the sums of a small table: one a row; none for others, whose gradients are listed.

    Rows must be whole vectors, and no slots that have to be found, as those of compact tables are.
    """
    rows = field(table, ROWS)
    small = rows <= min(occurrences, SUM_BYTES // (4 * dim))
    return rows if small and dim % 16 == 0 and field(table, INDEX) == 0 else 0


@njit(nogil=True)
def begin_sums(table: int, dim: int, sums: int, flags: int) -> None:
    """Make the sums of no gradients, and flags (int32) of no rows."""
    nothing, rows = simd.splat16(_NEGATIVE_ZERO), field(table, ROWS)
    for at in range(sums, sums + 4 * dim * rows, 64):
        simd.store(at, nothing)
    for row in range(rows):
        store_i32(flags + 4 * row, np.int32(0))


@njit(nogil=True)
def add_source(source: int, table: int, dim: int, sums: int, flags: int) -> bool:
    """Add the gradients of a source to the sums of their rows; false if an id is out of range."""
    if field(source, OFFSETS) == 0 and dim == 16:  # the usual one: as a constant it spares each id a loop
        return _add_singles(source, table, 16, sums, flags)
    if field(source, OFFSETS) == 0:
        return _add_singles(source, table, dim, sums, flags)
    ids, vector, stride = field(source, IDS), field(source, VECTORS), field(source, VECTOR_STRIDE)
    offsets, frozen, rows = field(source, OFFSETS), field(table, FROZEN), field(table, ROWS)
    begin = load_i64(offsets)
    for bag in range(field(source, BAGS)):
        prefetch_row(vector + AHEAD * stride, 4 * dim)
        end = load_i64(offsets + 8 * (bag + 1))
        for i in range(begin, end):
            row = load_i64(ids + 8 * i)
            if row < 0 or row >= rows:
                return False
            if row >= frozen:
                _add(vector, row, dim, sums, flags)
        begin = end
        vector += stride
    return True


@njit(nogil=True, inline="always")
def _add_singles(source, table, dim, sums, flags):  # type: ignore[no-untyped-def]
    """As `add_source`, of bags of one id each."""
    ids, vector, stride = field(source, IDS), field(source, VECTORS), field(source, VECTOR_STRIDE)
    frozen, rows = field(table, FROZEN), field(table, ROWS)
    for bag in range(field(source, BAGS)):
        for d in range(0, 4 * dim, 64):
            simd.prefetch(vector + AHEAD * stride + d)
        row = load_i64(ids + 8 * bag)
        if row < 0 or row >= rows:
            return False
        if row >= frozen:
            _add(vector, row, dim, sums, flags)
        vector += stride
    return True


@njit(nogil=True, inline="always")
def _add(vector, row, dim, sums, flags):  # type: ignore[no-untyped-def]
    """Add a gradient to the sum of its row."""
    store_i32(flags + 4 * row, np.int32(1))
    at = sums + 4 * dim * row
    for d in range(0, 4 * dim, 64):
        simd.store(at + d, simd.add(simd.load16(at + d), simd.load16(vector + d)))


@njit(nogil=True)
def list_sums(table: int, dim: int, sums: int, flags: int, rows: int, counts: int, gradients: int) -> int:
    """List the rows that have sums, one gradient each, and where that is; returns how many they are.

    What is written for a row without a sum is overwritten by the next: there is no branch. There is room for
    it, because a small table has no more rows than ids.
    """
    distinct = 0
    for row in range(field(table, ROWS)):
        store_i64(rows + 8 * distinct, row)
        store_i64(counts + 8 * distinct, 1)
        store_i64(gradients + 8 * distinct, sums + 4 * dim * row)
        distinct += int(load_i32(flags + 4 * row))
    return distinct
