"""Adds up rows of folded tables: what a first layer makes of the ids of small tables, without a product.

    products of table k, a row for each id:      out of row r:
    ┌────────── units ──────────┐                bias
    │ id 0:  vector(0) · Wₖ     │                + products₀[id₀(r)]
    │ id 1:  vector(1) · Wₖ     │                + products₁[id₁(r)] + …
    └───────────────────────────┘

Sums stay in registers while tables go by: 8 vectors of 16 units at a time.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from recgrad.data.plain.layout import EMPTY
from recgrad.kernels.parallel import FIRST, next_task
from recgrad.kernels.simd import LINE, add, address, field, load16, load_i64, store

ROWS_PER_TASK = 64

# The kernel's arguments: sizes, then addresses.
(
    TASK_COUNT,
    ROWS,
    UNITS,  # a multiple of 16
    TABLES,  # how many there are
    SHARED,  # so many of them, the first ones, have one id for all rows
    TABLE_LINES,  # int64 [tables, TABLE_COLUMNS]
    BIAS,  # float32 [units]
    OUT,  # float32 [rows, units]
) = range(FIRST, FIRST + 8)

PRODUCTS, IDS, TABLE_COLUMNS = range(3)
"""Of a table: where the products of its id 0 lie; where the ids of rows lie, int64."""
_BLOCK = 8 * LINE


@njit(nogil=True)
def _sum(lines: int, first: int, last: int, row: int, start: int, out: int, size: int) -> None:
    """out ← start + products of a row's ids in some tables; `size` is in bytes."""
    at = 0
    while at + _BLOCK <= size:
        a, b = load16(start + at), load16(start + at + LINE)
        c, d = load16(start + at + 2 * LINE), load16(start + at + 3 * LINE)
        e, f = load16(start + at + 4 * LINE), load16(start + at + 5 * LINE)
        g, h = load16(start + at + 6 * LINE), load16(start + at + 7 * LINE)
        for table in range(first, last):
            line = lines + 8 * TABLE_COLUMNS * table
            number = load_i64(field(line, IDS) + 8 * row)
            if number != EMPTY:
                of = field(line, PRODUCTS) + number * size + at
                a, b = add(a, load16(of)), add(b, load16(of + LINE))
                c, d = add(c, load16(of + 2 * LINE)), add(d, load16(of + 3 * LINE))
                e, f = add(e, load16(of + 4 * LINE)), add(f, load16(of + 5 * LINE))
                g, h = add(g, load16(of + 6 * LINE)), add(h, load16(of + 7 * LINE))
        store(out + at, a)
        store(out + at + LINE, b)
        store(out + at + 2 * LINE, c)
        store(out + at + 3 * LINE, d)
        store(out + at + 4 * LINE, e)
        store(out + at + 5 * LINE, f)
        store(out + at + 6 * LINE, g)
        store(out + at + 7 * LINE, h)
        at += _BLOCK
    while at < size:
        a = load16(start + at)
        for table in range(first, last):
            line = lines + 8 * TABLE_COLUMNS * table
            number = load_i64(field(line, IDS) + 8 * row)
            if number != EMPTY:
                a = add(a, load16(field(line, PRODUCTS) + number * size + at))
        store(out + at, a)
        at += LINE


@njit(nogil=True)
def fold_tasks(a: int) -> None:
    """Draw tasks, of some rows each, and do them."""
    units, tables, shared = field(a, UNITS), field(a, TABLES), field(a, SHARED)
    size, lines = 4 * units, field(a, TABLE_LINES)
    base = np.empty(units, np.float32)
    _sum(lines, 0, shared, 0, field(a, BIAS), address(base), size)
    while True:
        task = next_task(a)
        if task >= field(a, TASK_COUNT):
            return
        first = task * ROWS_PER_TASK
        for row in range(first, min(first + ROWS_PER_TASK, field(a, ROWS))):
            _sum(lines, shared, tables, row, address(base), field(a, OUT) + size * row, size)
