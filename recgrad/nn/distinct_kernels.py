"""Kernels of a first layer over embeddings of ids that repeat: products by distinct id, not by row.

A batch has 8,192 rows but perhaps 20 countries. What the layer makes of a field is a function of its id, so
that it is computed once for each distinct id, looked up by each row, and added:

    numbers    codes[f, r], firsts[f, c], and rows in the order of codes: recgrad/kernels/numbering.py
    products   E_f = x[firsts, columns of f],   P_f = E_f·W_fᵀ                 [distinct, units]
    rows       out[r] = relu(b + W·rest[r] + Σ_f P_f[codes[f, r]])
    sums       S_f[c] = Σ_{r: codes[f, r] = c} g[r]                            [distinct, units]
    weights    W_f' = S_fᵀ·E_f
    columns    x'[firsts[f, c], columns of f] = S_f[c]·W_f                     0 in all other rows

    codes [fields, rows]       P, S, E: fields one below the other, each with SLACK rows more for tiles
      ┌ 0 0 1 2 0 1 … ┐          ┌──────── units ────────┐
      │ 0 1 1 1 0 0 … │   ──▶    │ field 0: 3 distinct   │ ◀ STARTS[0]
      └───────────────┘          ├ ─ ─ ─ slack ─ ─ ─ ─ ─ ┤
                                 │ field 1: 2 distinct   │ ◀ STARTS[1]
                                 └───────────────────────┘

A row costs an addition of `units` numbers for each field where the product has one for each of the field's
columns. Sums are made in the order of rows, by one task for each part of the columns, so that no result
depends on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from recgrad.kernels import numbering
from recgrad.kernels.compile import Wanted
from recgrad.kernels.numbering import CHUNK, CHUNK_BITS
from recgrad.kernels.parallel import FIRST, next_task
from recgrad.kernels.products import TILES, finishing
from recgrad.kernels.simd import (
    LINE,
    add,
    address,
    field,
    keep_positive,
    load16,
    load_i32,
    load_i64,
    prefetch,
    store,
    store_i64,
    zeros16,
)
from recgrad.kernels.tiles import copy_rows

ROWS_OF_TASK = 48  # a multiple of the rows of every tile
ACROSS = 4  # vectors of a row that are summed at a time
AHEAD = 8  # rows between asking for a sum and adding to it
# Bytes from which on sums, and what is looked up, are asked for before they are needed. Rows of the latter
# are long: the processor itself asks for what follows, which is enough while they are not too far away.
NEAR, FAR = 1 << 19, 1 << 24

product, product_from = TILES.product, TILES.product_from


def kernels() -> list[Wanted]:
    """What a step needs compiled, in the order of need."""
    tasks = (rest_tasks, move_tasks, product_tasks, row_tasks, sum_tasks)
    return [*numbering.kernels(), *(Wanted(task) for task in tasks)]


# --- distinct ids ---

# What is known of a field: its first column of x, its width, where its codes, their order and firsts are, the
# row of its first id in E, P and S, and how many it has.
(COLUMN, WIDTH, CODES_OF, ORDER_OF, FIRSTS_OF, START, COUNT, FIELD_COLUMNS) = range(8)

(M_FIELDS, M_LINES, X, X_ROW, E, E_ROW, BACK) = range(FIRST, FIRST + 7)


@njit(nogil=True)
def move_tasks(a: int) -> None:
    """A field each: E_f ← columns of x, of the rows where ids first appear; or back."""
    x_row, e_row = field(a, X_ROW), field(a, E_ROW)
    task = next_task(a)
    while task < field(a, M_FIELDS):
        line = field(a, M_LINES) + 8 * FIELD_COLUMNS * task
        x, e = field(a, X) + 4 * field(line, COLUMN), field(a, E) + field(line, START) * e_row
        for i in range(field(line, COUNT)):
            at = x + x_row * load_i32(field(line, FIRSTS_OF) + 4 * i)
            if field(a, BACK) != 0:
                copy_rows(e, 0, at, 0, 1, field(line, WIDTH))
            else:
                copy_rows(at, 0, e, 0, 1, field(line, WIDTH))
            e += e_row
        task = next_task(a)


# Other columns: runs of them, (first, width) each, side by side in `rest`.
(O_TASKS, O_ROWS, RUNS, RUN_COUNT, WHOLE, WHOLE_ROW, WHOLE_WIDTH, PART, PART_ROW, SPREAD) = range(
    FIRST, FIRST + 10
)


@njit(nogil=True)
def _clear(at, width):  # type: ignore[no-untyped-def]
    i = 0
    while i + LINE <= 4 * width:
        store(at + i, zeros16())
        i += LINE
    while i < 4 * width:
        store(at + i, np.float32(0))
        i += 4


@njit(nogil=True)
def rest_tasks(a: int) -> None:
    """Some rows each: rest ← runs of columns, or back, with 0 in the columns between the runs."""
    runs, count = field(a, RUNS), field(a, RUN_COUNT)
    task = next_task(a)
    while task < field(a, O_TASKS):
        first = ROWS_OF_TASK * task
        for r in range(first, min(first + ROWS_OF_TASK, field(a, O_ROWS))):
            whole, part = field(a, WHOLE) + r * field(a, WHOLE_ROW), field(a, PART) + r * field(a, PART_ROW)
            end = 0
            for i in range(count):
                begin, width = field(runs, 2 * i), field(runs, 2 * i + 1)
                if field(a, SPREAD) == 0:
                    copy_rows(whole + 4 * begin, 0, part, 0, 1, width)
                else:
                    _clear(whole + 4 * end, begin - end)
                    copy_rows(part, 0, whole + 4 * begin, 0, 1, width)
                part += 4 * width
                end = begin + width
            if field(a, SPREAD) != 0:
                _clear(whole + 4 * end, field(a, WHOLE_WIDTH) - end)
        task = next_task(a)


# A block of a product: addresses of a, b and out, and how many steps, rows and vectors.
(BLOCK_A, BLOCK_B, BLOCK_OUT, BLOCK_STEPS, BLOCK_ROWS, BLOCK_VECTORS, BLOCK_COLUMNS) = range(7)
(TASKS, BLOCKS, A_ROW, A_STEP, B_VECTOR, B_STEP, P_OUT_ROW) = range(FIRST, FIRST + 7)


@finishing()
def finish_stored(row, column, value, to):  # type: ignore[no-untyped-def]
    """Store a vector."""
    out, out_row = to
    store(out + row * out_row + LINE * column, value)


@njit(nogil=True)
def product_tasks(a: int) -> None:
    """A block each."""
    task = next_task(a)
    while task < field(a, TASKS):
        block = field(a, BLOCKS) + 8 * BLOCK_COLUMNS * task
        product(
            finish_stored, (field(block, BLOCK_OUT), field(a, P_OUT_ROW)), field(block, BLOCK_A),
            field(a, A_ROW), field(a, A_STEP), field(block, BLOCK_B), field(a, B_VECTOR), field(a, B_STEP),
            field(block, BLOCK_STEPS), field(block, BLOCK_ROWS), 0, field(block, BLOCK_VECTORS),
        )  # fmt: skip
        task = next_task(a)


# --- rows ---

(R_TASKS, R_ROWS, R_FIELDS, R_LINES, R_P, R_P_ROW, R_SIZE, R_VECTORS, REST, REST_ROW, STEPS, R_PANELS) = (
    range(FIRST, FIRST + 12)
)
(BIAS, OUT, OUT_ROW) = range(R_PANELS + 1, R_PANELS + 4)


@finishing()
def finish_added(row, column, value, to):  # type: ignore[no-untyped-def]
    """Add a vector to what is there, and store it where it is above 0."""
    out, out_row = to
    at = out + row * out_row + LINE * column
    value = add(value, load16(at))
    store(at, keep_positive(value, value))


@njit(nogil=True, inline="always")
def _ask(at):  # type: ignore[no-untyped-def]
    """Ask for ACROSS vectors."""
    prefetch(at)
    prefetch(at + LINE)
    prefetch(at + 2 * LINE)
    prefetch(at + 3 * LINE)


def _adder(asks: bool) -> Any:
    """f(places, ahead, fields, vectors, out): out ← Σ_f of the vectors at the addresses of `places`.

    With `asks` those of `ahead` are asked for: a function of its own, since a test in the loop takes longer
    than the additions.
    """

    def add_up(places, ahead, fields, vectors, out):  # type: ignore[no-untyped-def]
        v = 0
        while v + ACROSS <= vectors:
            c0, c1, c2, c3 = zeros16(), zeros16(), zeros16(), zeros16()
            for f in range(fields):
                p = load_i64(places + 8 * f) + LINE * v
                if asks:
                    _ask(load_i64(ahead + 8 * f) + LINE * v)
                c0 = add(c0, load16(p))
                c1 = add(c1, load16(p + LINE))
                c2 = add(c2, load16(p + 2 * LINE))
                c3 = add(c3, load16(p + 3 * LINE))
            store(out + LINE * v, c0)
            store(out + LINE * (v + 1), c1)
            store(out + LINE * (v + 2), c2)
            store(out + LINE * (v + 3), c3)
            v += ACROSS
        while v < vectors:
            c = zeros16()
            for f in range(fields):
                c = add(c, load16(load_i64(places + 8 * f) + LINE * v))
            store(out + LINE * v, c)
            v += 1

    return njit(add_up)


_add_near, _add_far = _adder(False), _adder(True)


@njit(nogil=True)
def _find_places(lines, fields, r, p, p_row, places):  # type: ignore[no-untyped-def]
    """places ← where what is looked up for a row lies."""
    for f in range(fields):
        line = lines + 8 * FIELD_COLUMNS * f
        row = field(line, START) + load_i32(field(line, CODES_OF) + 4 * r)
        store_i64(places + 8 * f, p + p_row * row)


@njit(nogil=True)
def row_tasks(a: int) -> None:
    """Some rows each: what is looked up, and the product of the other columns on top of it."""
    fields, vectors, out_row = field(a, R_FIELDS), field(a, R_VECTORS), field(a, OUT_ROW)
    p, p_row = field(a, R_P), field(a, R_P_ROW)
    far = field(a, R_SIZE) * p_row > FAR
    places = np.empty(2 * fields, np.int64)
    here, ahead = address(places), address(places) + 8 * fields
    task = next_task(a)
    while task < field(a, R_TASKS):
        first = ROWS_OF_TASK * task
        n = min(ROWS_OF_TASK, field(a, R_ROWS) - first)
        out = field(a, OUT) + first * out_row
        if far:
            _find_places(field(a, R_LINES), fields, first, p, p_row, here)
        for r in range(first, first + n):
            to = out + (r - first) * out_row
            if far:
                _find_places(field(a, R_LINES), fields, min(r + 1, first + n - 1), p, p_row, ahead)
                _add_far(here, ahead, fields, vectors, to)
                here, ahead = ahead, here
            else:
                _find_places(field(a, R_LINES), fields, r, p, p_row, here)
                _add_near(here, here, fields, vectors, to)
        product_from(
            finish_added, (out, out_row), field(a, REST) + first * field(a, REST_ROW), field(a, REST_ROW), 4,
            field(a, R_PANELS), LINE * field(a, STEPS), LINE, field(a, STEPS), field(a, BIAS), n, 0, vectors,
        )  # fmt: skip
        task = next_task(a)


# --- sums ---

(S_TASKS, S_ROWS, S_FIELDS, S_LINES, G, G_ROW, S, S_ROW, S_SIZE, S_VECTORS) = range(FIRST, FIRST + 10)


@njit(nogil=True)
def _sum_chunk(order, n, g, g_row, s, s_row, far):  # type: ignore[no-untyped-def]
    """Add ACROSS vectors of a chunk's rows to those of their codes."""
    code = load_i32(order) >> CHUNK_BITS
    last = n - 1
    c0, c1, c2, c3 = zeros16(), zeros16(), zeros16(), zeros16()
    for i in range(n + 1):
        entry = load_i32(order + 4 * i) if i < n else -1
        if far:
            _ask(s + s_row * (load_i32(order + 4 * min(i + AHEAD, last)) >> CHUNK_BITS))
        if entry >> CHUNK_BITS != code:
            to = s + s_row * code
            store(to, add(load16(to), c0))
            store(to + LINE, add(load16(to + LINE), c1))
            store(to + 2 * LINE, add(load16(to + 2 * LINE), c2))
            store(to + 3 * LINE, add(load16(to + 3 * LINE), c3))
            c0, c1, c2, c3 = zeros16(), zeros16(), zeros16(), zeros16()
            code = entry >> CHUNK_BITS
        at = g + g_row * (entry & (CHUNK - 1) if i < n else 0)
        c0 = add(c0, load16(at))
        c1 = add(c1, load16(at + LINE))
        c2 = add(c2, load16(at + 2 * LINE))
        c3 = add(c3, load16(at + 3 * LINE))


@njit(nogil=True)
def _sum_vector(order, n, g, g_row, s, s_row):  # type: ignore[no-untyped-def]
    """The same of one vector."""
    for i in range(n):
        entry = load_i32(order + 4 * i)
        to = s + s_row * (entry >> CHUNK_BITS)
        store(to, add(load16(to), load16(g + g_row * (entry & (CHUNK - 1)))))


@njit(nogil=True)
def sum_tasks(a: int) -> None:
    """ACROSS vectors of the columns each, of all fields, chunk by chunk."""
    rows, s_row, g_row = field(a, S_ROWS), field(a, S_ROW), field(a, G_ROW)
    task = next_task(a)
    while task < field(a, S_TASKS):
        s, g = field(a, S) + LINE * ACROSS * task, field(a, G) + LINE * ACROSS * task
        across = min(ACROSS, field(a, S_VECTORS) - ACROSS * task)
        far = field(a, S_SIZE) * LINE * ACROSS > NEAR
        for i in range(field(a, S_SIZE)):
            for v in range(across):
                store(s + i * s_row + LINE * v, zeros16())
        for first in range(0, rows, CHUNK):
            n = min(CHUNK, rows - first)
            for f in range(field(a, S_FIELDS)):
                line = field(a, S_LINES) + 8 * FIELD_COLUMNS * f
                order, to = field(line, ORDER_OF) + 4 * first, s + s_row * field(line, START)
                if across == ACROSS:
                    _sum_chunk(order, n, g + first * g_row, g_row, to, s_row, far)
                else:
                    for v in range(0, LINE * across, LINE):
                        _sum_vector(order, n, g + first * g_row + v, g_row, to + v, s_row)
        task = next_task(a)
