"""The lookup kernel of exported tables: tables of any widths and packings in one call.

Bags of one id each, the usual case, are copied; others are pooled as training pools them.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from recgrad.embedding.local.index import prefetch_entry
from recgrad.embedding.local.layout import (
    ID_WEIGHTS,
    IDS,
    INDEX,
    KIND,
    LOOKUP_COLUMNS,
    OFFSETS,
    TABLE,
    TABLE_COLUMNS,
    VECTOR_STRIDE,
    VECTORS,
)
from recgrad.embedding.local.lookup import RING, pool_bags, resolve
from recgrad.embedding.local.rows import (
    ZERO,
    copy,
    copy_wide,
    generate,
    load_scaled,
    load_stored,
    untouched,
)
from recgrad.kernels import simd
from recgrad.kernels.parallel import FIRST, next_task
from recgrad.kernels.simd import field, load_i64, store_i64

AHEAD = 16  # bags between finding a row's address and reading the row
BAGS_PER_TASK = 128
_NO_ID = -2  # address that stands for an empty bag

# What a lookup has beside the columns of training's.
DIM, ID_STEP, NO_ID, MAPPED_COLUMNS = range(LOOKUP_COLUMNS, LOOKUP_COLUMNS + 4)
# DIM: width of the table. ID_STEP: bytes from the id of a bag to that of the next; 0 where all bags share
# one. NO_ID: the id that stands for an empty bag.

TASK_COLUMNS = 4  # first lookup, last lookup, first bag, last bag
ERROR_COLUMNS = 3  # lookup, 1 + position of the first bad id, the id

# The kernel's arguments: sizes, then addresses.
TASK_COUNT, LOOKUPS, TABLES, PARAMETERS, TASKS, ERRORS = range(FIRST, FIRST + 6)


@njit(nogil=True, inline="always")
def _unpack_part(like, row, kind, d, out):  # type: ignore[no-untyped-def]
    if kind == simd.I8:
        simd.store(out + 4 * d, load_scaled(like, row, d))
    else:
        simd.store(out + 4 * d, load_stored(like, row + 2 * d, kind))


@njit(nogil=True)
def _unpack(row: int, kind: int, out: int, dim: int) -> None:
    """Write a row of fewer than 32 bits an element as float32."""
    d = 0
    while d + 16 <= dim:
        _unpack_part(simd.zeros16(), row, kind, d, out)
        d += 16
    if d + 8 <= dim:
        _unpack_part(simd.zeros8(), row, kind, d, out)
        d += 8
    if d + 4 <= dim:
        _unpack_part(simd.zeros4(), row, kind, d, out)
        d += 4
    while d < dim:
        _unpack_part(ZERO, row, kind, d, out)
        d += 1


@njit(nogil=True)
def _take_rows(
    lookup: int, table: int, parameters: int, first_bag: int, last_bag: int, dim: int, ring: int
) -> int:
    """Write the row of each bag's one id; returns 1 + the position of the first bad id, or 0."""
    ids, id_step, no_id = field(lookup, IDS), field(lookup, ID_STEP), field(lookup, NO_ID)
    step, kind = field(lookup, VECTOR_STRIDE), field(table, KIND)
    compact, wide = field(table, INDEX) != 0, kind == simd.F32 and dim % 16 == 0
    out = field(lookup, VECTORS) + first_bag * step
    bad = 0
    known = first_bag
    for bag in range(first_bag, last_bag):
        while known < min(last_bag, bag + AHEAD):
            if compact and known + AHEAD < last_bag:
                prefetch_entry(table, load_i64(ids + id_step * (known + AHEAD)))
            row = load_i64(ids + id_step * known)
            address = _NO_ID if row == no_id else resolve(table, row)
            store_i64(ring + 8 * (known & (RING - 1)), address)
            if address == -1 and bad == 0:
                bad = known + 1
            known += 1
        address = load_i64(ring + 8 * (bag & (RING - 1)))
        if address < 0:
            for d in range(dim):
                simd.store(out + 4 * d, ZERO)
        elif address == 0 or untouched(address, kind):
            generate(table, parameters, load_i64(ids + id_step * bag), out, dim)
        elif wide:
            copy_wide(address, out, dim)
        elif kind == simd.F32:
            copy(address, out, dim)
        else:
            _unpack(address, kind, out, dim)
        out += step
    return bad


@njit(nogil=True)
def mapped_lookups(a: int) -> None:
    """Draw tasks and do them."""
    ring = np.empty(2 * RING, np.int64)
    while True:
        task = next_task(a)
        if task >= field(a, TASK_COUNT):
            return
        line = field(a, TASKS) + 8 * TASK_COLUMNS * task
        error = field(a, ERRORS) + 8 * ERROR_COLUMNS * task
        first_bag, last_bag = field(line, 2), field(line, 3)
        for i in range(field(line, 0), field(line, 1)):
            lookup = field(a, LOOKUPS) + 8 * MAPPED_COLUMNS * i
            t, dim = field(lookup, TABLE), field(lookup, DIM)
            table, parameters = field(a, TABLES) + 8 * TABLE_COLUMNS * t, field(a, PARAMETERS) + 32 * t
            if field(lookup, OFFSETS) == 0 and field(lookup, ID_WEIGHTS) == 0:
                bad = _take_rows(lookup, table, parameters, first_bag, last_bag, dim, simd.address(ring))
            else:
                bad = pool_bags(lookup, table, parameters, first_bag, last_bag, dim, simd.address(ring))
            if bad != 0 and field(error, 1) == 0:
                store_i64(error, i)
                store_i64(error + 8, bad)
                step = 8 if field(lookup, OFFSETS) != 0 else field(lookup, ID_STEP)
                store_i64(error + 16, load_i64(field(lookup, IDS) + step * (bad - 1)))
