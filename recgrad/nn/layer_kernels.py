"""Kernels of linear layers with ReLU: products by tiles, with what follows them done in the registers.

    rows      out[r] = relu(W·x[r] + b),  out[r] = Wᵀ·g[r] where gates[r] > 0,  or  out[r] = Wᵀ·g[r]
    weights   W' = Σ_r g[r]·x[r]ᵀ,   b' = Σ_r g[r]

Several networks of one shape (experts) lie side by side in the columns of x, g and out. Weights are packed
into panels of 16 columns, [vectors, steps, 16], so that a tile reads them in a row:

                 ┌ 16 ┐┌ 16 ┐
    steps   x ─▶ │    ││    │ …     a block of ROWS_OF_TASK rows meets all panels, which stay in the cache
                 └────┘└────┘

    weights       x columns ─▶
      g    ┌──────┬──────┐  each task sums its part of W' over a lot of rows, STEPS at a time: those of a
    columns│ task │ task │  part of x lie in the innermost cache while all tiles of the task pass over them
      │    ├──────┼──────┤
      ▼    │ task │ task │  Rows are cut into some lots, each with a W' of its own, which are added up at the
           └──────┴──────┘  end: a thread that is held up for a while then has less that none can take over.

Every number is summed in an order that rows alone decide, so that results do not depend on the number of
threads. Vectors and tiles may run over the end of a row and of the last row: `recgrad.nn.layer_products`
gives matrices room for it.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from recgrad.kernels.parallel import FIRST, next_task
from recgrad.kernels.products import TILES, finishing
from recgrad.kernels.simd import (
    LANES,
    LINE,
    add,
    field,
    keep_positive,
    load1,
    load16,
    prefetch,
    prefetch_to_write,
    store,
)
from recgrad.kernels.tiles import add_rows, add_to

ROWS_OF_TASK = 48  # a multiple of the rows of every tile
STEPS = 48  # rows of x and g that meet before the next ones
VECTORS_OF_LOT = 1024  # that a task adds up over all lots
PLAIN, RELU, GATED = 0, 1, 2

product, product_from = TILES.product, TILES.product_from

(TASKS, ROWS, COUNT, WIDTH, VECTORS, X, X_ROW, X_NEXT, PANELS, PANELS_NEXT) = range(FIRST, FIRST + 10)
(BIAS, BIAS_NEXT, OUT, OUT_ROW, OUT_NEXT, GATES, MODE) = range(PANELS_NEXT + 1, PANELS_NEXT + 8)


def ask_for_row(row, column, to):  # type: ignore[no-untyped-def]
    """Have the gates of a vector and its place come near while it is computed.

    Forward there are no gates, and to ask for the place alone gains nothing.
    """
    out, out_row, gates, mode = to
    if mode == GATED:
        prefetch_to_write(out + row * out_row + LINE * column)
        prefetch(gates + row * out_row + LINE * column)


@finishing(ask_for_row)
def finish_row(row, column, value, to):  # type: ignore[no-untyped-def]
    """Store a vector of a layer's output."""
    out, out_row, gates, mode = to
    at = row * out_row + LINE * column
    if mode == RELU:
        value = keep_positive(value, value)
    elif mode == GATED:
        value = keep_positive(value, load16(gates + at))
    store(out + at, value)


@njit(nogil=True)
def row_tasks(a: int) -> None:
    """Some rows each, of all networks; in their order, since a vector may run over into the next."""
    task = next_task(a)
    while task < field(a, TASKS):
        first = ROWS_OF_TASK * task
        n = min(ROWS_OF_TASK, field(a, ROWS) - first)
        x, panels, bias = field(a, X) + first * field(a, X_ROW), field(a, PANELS), field(a, BIAS)
        begin = first * field(a, OUT_ROW)
        panel = LINE * field(a, WIDTH)
        for e in range(field(a, COUNT)):
            at = begin + e * field(a, OUT_NEXT)
            to = (field(a, OUT) + at, field(a, OUT_ROW), field(a, GATES) + at, field(a, MODE))
            product_from(
                finish_row, to, x, field(a, X_ROW), 4, panels, panel, LINE, field(a, WIDTH), bias,
                n, 0, field(a, VECTORS),
            )  # fmt: skip
            x += field(a, X_NEXT)
            panels += field(a, PANELS_NEXT)
            bias += field(a, BIAS_NEXT)
        task = next_task(a)


(W_TASKS, W_ROWS, UNITS, UNITS_OF_TASK, W_VECTORS, VECTORS_OF_TASK) = range(FIRST, FIRST + 6)
(G, G_ROW, G_NEXT, W_X, W_X_ROW, W_X_NEXT) = range(VECTORS_OF_TASK + 1, VECTORS_OF_TASK + 7)
(OF_W, OF_W_ROW, OF_W_NEXT, OF_B, OF_B_NEXT) = range(W_X_NEXT + 1, W_X_NEXT + 6)
(LOT, LOT_BYTES) = range(OF_B_NEXT + 1, OF_B_NEXT + 3)  # rows of a lot, and bytes from one's sums to the next


@finishing()
def finish_weight(row, column, value, to):  # type: ignore[no-untyped-def]
    """Add a vector to a weight's gradient; the first one is it."""
    out, out_row, begun = to
    at = out + row * out_row + LINE * column
    if begun:
        add_to(at, value)
    else:
        store(at, value)


@njit(nogil=True)
def weight_tasks(a: int) -> None:
    """A part of the gradient of a lot each; the first part of some units also sums gradients of the bias."""
    down = -(-field(a, UNITS) // field(a, UNITS_OF_TASK))
    across = -(-field(a, W_VECTORS) // field(a, VECTORS_OF_TASK))
    lots = max(-(-field(a, W_ROWS) // field(a, LOT)), 1)
    networks = field(a, W_TASKS) // (lots * down * across)
    g_row, x_row, out_row = field(a, G_ROW), field(a, W_X_ROW), field(a, OF_W_ROW)
    task = next_task(a)
    while task < field(a, W_TASKS):
        lot, e = task // (networks * down * across), task // (down * across) % networks
        part, first = task % (down * across), lot * field(a, LOT)
        unit, vector = part // across * field(a, UNITS_OF_TASK), part % across * field(a, VECTORS_OF_TASK)
        units = min(field(a, UNITS_OF_TASK), field(a, UNITS) - unit)
        last = min(vector + field(a, VECTORS_OF_TASK), field(a, W_VECTORS))
        g = field(a, G) + e * field(a, G_NEXT) + first * g_row + 4 * unit
        x = field(a, W_X) + e * field(a, W_X_NEXT) + first * x_row + LINE * vector
        out = field(a, OF_W) + lot * field(a, LOT_BYTES) + e * field(a, OF_W_NEXT) + unit * out_row
        sums = field(a, OF_B) + lot * field(a, LOT_BYTES) + e * field(a, OF_B_NEXT) + 4 * unit
        end = min(first + field(a, LOT), field(a, W_ROWS))
        for row in range(first, end, STEPS):
            steps = min(STEPS, end - row)
            to = (out, out_row, row > first)
            product(finish_weight, to, g, 4, g_row, x, LINE, x_row, steps, units, vector, last)
            if vector == 0 and field(a, OF_B) != 0:
                add_rows(g, g_row, steps, (units + LANES - 1) // LANES * LANES, sums)
            g += steps * g_row
            x += steps * x_row
        task = next_task(a)


(L_TASKS, L_VECTORS, L_SUMS, L_BYTES, L_COUNT) = range(FIRST, FIRST + 5)


@njit(nogil=True)
def lot_tasks(a: int) -> None:
    """Add the sums of all lots to those of the first, VECTORS_OF_LOT vectors each."""
    task = next_task(a)
    while task < field(a, L_TASKS):
        first = VECTORS_OF_LOT * task
        for v in range(first, min(first + VECTORS_OF_LOT, field(a, L_VECTORS))):
            at = field(a, L_SUMS) + LINE * v
            total = load16(at)
            for lot in range(1, field(a, L_COUNT)):
                total = add(total, load16(at + lot * field(a, L_BYTES)))
            store(at, total)
        task = next_task(a)


(P_PANELS, P_STEPS, P_WIDTH, P_COUNT, P_FROM, P_STEP, P_COLUMN, P_NEXT, P_TO) = range(FIRST, FIRST + 9)


@njit(nogil=True)
def pack_tasks(a: int) -> None:
    """A panel each: [steps, 16] of a matrix [steps, width] with any distances, zeros where it has nothing."""
    steps, column, step = field(a, P_STEPS), field(a, P_COLUMN), field(a, P_STEP)
    task = next_task(a)
    while task < field(a, P_COUNT) * field(a, P_PANELS):
        e, panel = task // field(a, P_PANELS), task % field(a, P_PANELS)
        source = field(a, P_FROM) + e * field(a, P_NEXT) + LANES * panel * column
        to, there = field(a, P_TO) + task * LINE * steps, min(LANES, field(a, P_WIDTH) - LANES * panel)
        for _ in range(steps):
            if there == LANES and column == 4:
                store(to, load16(source))
            else:
                for j in range(LANES):
                    store(to + 4 * j, load1(source + j * column) if j < there else np.float32(0))
            source += step
            to += LINE
        task = next_task(a)
