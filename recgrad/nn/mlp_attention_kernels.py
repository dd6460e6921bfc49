"""Kernels of attention that a ReLU MLP scores, and of its gradients.

The first layer of position t in row b is relu(s_t·M_b + c_b), with M_b = A + diag(q_b)·C of that row
alone; the layers after it are relu(x·Wᵀ + bias). The kernels walk over blocks of about a hundred
positions, so that what one product writes the next one finds in the cache, and make the panels of
M_b as they need them. Its gradient s_bᵀ·g never leaves the registers: it is added to those of A,
C and q_b from there.

Gradients of weights are summed by task, and tasks are cut by lengths alone, so that results do not
depend on the number of threads. `recgrad.nn.mlp_attention` fills in the argument blocks.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, types

from recgrad.kernels import cached_cfunc
from recgrad.kernels.simd16 import (
    LANES,
    LINE,
    draw,
    keep_positive,
    load,
    load1,
    load_i64,
    multiply_add,
    splat,
    store,
    store1,
    total,
    zeros,
)
from recgrad.kernels.tiles import (
    SLACK,
    TILE,
    add_products,
    add_rows,
    add_to,
    copy_rows,
    gated_product,
    product,
    relu_product,
    tile6,
)

# What an argument block holds: int64 numbers and addresses.
(NEXT, TASKS, CUTS, ROW_CUTS, BLOCKS, SPANS, OFFSETS, KEEP, ROOM, LAYERS, TABLE) = range(11)
(DIM, SEQUENCE, QUERY, PER_ROW, A, C, A_BACK, C_BACK, SCORE, WEIGHTS, OUT) = range(11, 22)
(SCRATCH, SCRATCH_BYTES, POSITION_ROW, AT_POSITIONS, AT_QUERY, AT_OUT, AT_OF_QUERY) = range(22, 29)
(AT_GRADIENTS, GRADIENTS_BYTES, GRAD_SCORES) = range(29, 32)
(GRAD_OUT, GRAD_SEQUENCE, GRAD_QUERY, GRAD_PER_ROW) = range(32, 36)
(SUMS_BYTES, GRAD_A, GRAD_C, GRAD_SCORE) = range(36, 40)
ARGUMENTS = 40
# What the table holds of each layer.
(INPUTS, WIDTH, STRIDE, VALUES, FORWARD, BACKWARD, BIAS, GRAD_WEIGHT, GRAD_BIAS) = range(9)
LAYER_FIELDS = 9
SPAN_FIELDS = 3  # row, first position, number of positions

_LOWEST = np.float32(-np.inf)


@njit
def slot(a, i):  # type: ignore[no-untyped-def]
    """A number of an argument block or table."""
    return load_i64(a + 8 * i)


@njit
def layer(a, i, field):  # type: ignore[no-untyped-def]
    """A field of a layer."""
    return slot(slot(a, TABLE), i * LAYER_FIELDS + field)


@njit
def span_at(a, i):  # type: ignore[no-untyped-def]
    """Where a span is described."""
    return slot(a, SPANS) + 8 * SPAN_FIELDS * i


@njit
def values(a, i, task, block, start):  # type: ignore[no-untyped-def]
    """Where a layer's outputs for a block begin: kept for the backward pass, or only until the next block."""
    row = start + SLACK * block if slot(a, KEEP) else task * slot(a, ROOM)
    return layer(a, i, VALUES) + row * layer(a, i, STRIDE)


@njit
def forward_span(a, scratch, i, s, x):  # type: ignore[no-untyped-def]
    """The first layer of a span whose positions lie at s, to x."""
    row, count, dim = slot(span_at(a, i), 0), slot(span_at(a, i), 2), slot(a, DIM)
    s_row, x_row, width = slot(a, POSITION_ROW), layer(a, 0, STRIDE), layer(a, 0, WIDTH)
    q, c = slot(a, QUERY) + 4 * dim * row, slot(a, PER_ROW) + 4 * width * row
    panel = LINE * ((dim + TILE - 1) // TILE * TILE)
    for p in range(width // LANES):
        of_s, of_product = slot(a, A) + p * panel, slot(a, C) + p * panel
        for d in range(dim):
            m = multiply_add(splat(load1(q + 4 * d)), load(of_product + LINE * d), load(of_s + LINE * d))
            store(scratch + LINE * d, m)
        relu_product(s, s_row, scratch, dim, load(c + LINE * p), x + LINE * p, x_row, count)


@njit
def forward_block(a, task, block):  # type: ignore[no-untyped-def]
    """Scores of the positions of a block, to WEIGHTS."""
    first, end = slot(slot(a, BLOCKS), block), slot(slot(a, BLOCKS), block + 1)
    start, dim, s_row = slot(span_at(a, first), 1), slot(a, DIM), slot(a, POSITION_ROW)
    n = slot(span_at(a, end - 1), 1) + slot(span_at(a, end - 1), 2) - start
    scratch = slot(a, SCRATCH) + task * slot(a, SCRATCH_BYTES)
    s, x, x_row = scratch + slot(a, AT_POSITIONS), values(a, 0, task, block, start), layer(a, 0, STRIDE)
    copy_rows(slot(a, SEQUENCE) + 4 * dim * start, 4 * dim, s, s_row, n, dim)
    for i in range(first, end):
        t = slot(span_at(a, i), 1) - start
        forward_span(a, scratch, i, s + t * s_row, x + t * x_row)
    for i in range(1, slot(a, LAYERS)):
        out, out_row = values(a, i, task, block, start), layer(a, i, STRIDE)
        steps, weight, bias = layer(a, i, INPUTS), layer(a, i, FORWARD), layer(a, i, BIAS)
        for p in range(layer(a, i, WIDTH) // LANES):
            panel = weight + p * steps * LINE
            relu_product(x, x_row, panel, steps, load(bias + LINE * p), out + LINE * p, out_row, n)
        x, x_row = out, out_row
    width = layer(a, slot(a, LAYERS) - 1, WIDTH)
    for t in range(n):
        c = zeros()
        for p in range(0, 4 * width, LINE):
            c = multiply_add(load(x + t * x_row + p), load(slot(a, SCORE) + p), c)
        store1(slot(a, WEIGHTS) + 4 * (start + t), total(c))


@njit
def weigh_row(a, row):  # type: ignore[no-untyped-def]
    """Softmax of a row's scores, in their place, and the sum of its positions by these weights."""
    begin, end, dim = slot(slot(a, OFFSETS), row), slot(slot(a, OFFSETS), row + 1), slot(a, DIM)
    w, count = slot(a, WEIGHTS) + 4 * begin, end - begin
    top, whole = _LOWEST, np.float32(0)
    for t in range(count):
        top = max(top, load1(w + 4 * t))
    for t in range(count):
        e = np.float32(math.exp(load1(w + 4 * t) - top))
        store1(w + 4 * t, e)
        whole += e
    for t in range(count):
        store1(w + 4 * t, load1(w + 4 * t) / whole)
    s, out = slot(a, SEQUENCE) + 4 * dim * begin, slot(a, OUT) + 4 * dim * row
    for d in range(0, dim - LANES + 1, LANES):
        c = zeros()
        for t in range(count):
            c = multiply_add(splat(load1(w + 4 * t)), load(s + 4 * (dim * t + d)), c)
        store(out + 4 * d, c)
    for d in range(dim - dim % LANES, dim):
        x = np.float32(0)
        for t in range(count):
            x += load1(w + 4 * t) * load1(s + 4 * (dim * t + d))
        store1(out + 4 * d, x)


@njit
def dot(x, y, n):  # type: ignore[no-untyped-def]
    """Σ x·y of n numbers each."""
    c, rest = zeros(), np.float32(0)
    for i in range(0, n - LANES + 1, LANES):
        c = multiply_add(load(x + 4 * i), load(y + 4 * i), c)
    for i in range(n - n % LANES, n):
        rest += load1(x + 4 * i) * load1(y + 4 * i)
    return total(c) + rest


@njit
def unweigh_row(a, row):  # type: ignore[no-untyped-def]
    """The gradient of a row's scores, w_t·(o·s_t − Σ_u w_u·(o·s_u)): o is that of the row's output.

    A row of one position gets exactly 0, for its weight is 1 whatever its score.
    """
    begin, end, dim = slot(slot(a, OFFSETS), row), slot(slot(a, OFFSETS), row + 1), slot(a, DIM)
    w, g, mean = slot(a, WEIGHTS) + 4 * begin, slot(a, GRAD_SCORES) + 4 * begin, np.float32(0)
    s, o = slot(a, SEQUENCE) + 4 * dim * begin, slot(a, GRAD_OUT) + 4 * dim * row
    for t in range(end - begin):
        of_weight = dot(o, s + 4 * dim * t, dim)
        store1(g + 4 * t, of_weight)
        mean += load1(w + 4 * t) * of_weight
    for t in range(end - begin):
        store1(g + 4 * t, load1(w + 4 * t) * (load1(g + 4 * t) - mean))


@njit
def last_layer(a, start, x, g, row, n, sums):  # type: ignore[no-untyped-def]
    """The gradient g of the last layer's outputs x, and of the weights that make scores of them."""
    of_scores = slot(a, GRAD_SCORES) + 4 * start
    for p in range(0, 4 * layer(a, slot(a, LAYERS) - 1, WIDTH), LINE):
        weight, c = load(slot(a, SCORE) + p), zeros()
        for t in range(n):
            by, of_score = load(x + t * row + p), splat(load1(of_scores + 4 * t))
            c = multiply_add(of_score, by, c)
            store(g + t * row + p, keep_positive(multiply_add(of_score, weight, zeros()), by))
        add_to(slot(a, GRAD_SCORE) + sums + p, c)


@njit
def backward_span(a, scratch, i, s, g, sums):  # type: ignore[no-untyped-def]
    """The first layer of a span: g is the gradient of s·M + c."""
    row, start, count = slot(span_at(a, i), 0), slot(span_at(a, i), 1), slot(span_at(a, i), 2)
    dim, g_row, width = slot(a, DIM), layer(a, 0, STRIDE), layer(a, 0, WIDTH)
    of_row = slot(a, GRAD_PER_ROW) + 4 * width * i
    for p in range(0, 4 * width, LINE):
        store(of_row + p, zeros())
    add_rows(g, g_row, count, width, of_row)
    q, o = scratch + slot(a, AT_QUERY), scratch + slot(a, AT_OUT)
    copy_rows(slot(a, QUERY) + 4 * dim * row, 0, q, 0, 1, dim)
    copy_rows(slot(a, GRAD_OUT) + 4 * dim * row, 0, o, 0, 1, dim)
    out, w = slot(a, GRAD_SEQUENCE) + 4 * dim * start, slot(a, WEIGHTS) + 4 * start
    for p in range((dim + LANES - 1) // LANES):
        of_s, of_product = slot(a, A_BACK) + p * width * LINE, slot(a, C_BACK) + p * width * LINE
        part, by = load(q + LINE * p), load(o + LINE * p)
        for h in range(width):
            m = multiply_add(part, load(of_product + LINE * h), load(of_s + LINE * h))
            store(scratch + LINE * h, m)
        product(g, g_row, scratch, width, w, by, out + LINE * p, 4 * dim, dim - LANES * p, count)
    of_q = scratch + slot(a, AT_OF_QUERY)
    first_weights(a, q, of_q, s, g, count, sums)
    for d in range(dim):
        store1(slot(a, GRAD_QUERY) + 4 * (dim * i + d), total(load(of_q + LINE * d)))


@njit
def first_weights(a, q, of_q, s, g, count, sums):  # type: ignore[no-untyped-def]
    """Gradients of A, C and q from that of M = A + diag(q)·C, which is sᵀ·g."""
    dim, width, s_row, g_row = slot(a, DIM), layer(a, 0, WIDTH), slot(a, POSITION_ROW), layer(a, 0, STRIDE)
    padded, row = (dim + TILE - 1) // TILE * TILE, 4 * width
    of_s, of_product = slot(a, GRAD_A) + sums, slot(a, GRAD_C) + sums
    for d in range(padded):
        store(of_q + LINE * d, zeros())
    for p in range(width // LANES):
        c = slot(a, C) + LINE * padded * p
        for d in range(0, padded, TILE):
            m0, m1, m2, m3, m4, m5 = tile6(s + 4 * d, 4, s_row, g + LINE * p, g_row, count, zeros())
            at, by, to, line = d * row + LINE * p, c + LINE * d, of_q + LINE * d, q + 4 * d
            first_weight(m0, of_s + at, of_product + at, line, to, by)
            at += row
            first_weight(m1, of_s + at, of_product + at, line + 4, to + LINE, by + LINE)
            at += row
            first_weight(m2, of_s + at, of_product + at, line + 8, to + 2 * LINE, by + 2 * LINE)
            at += row
            first_weight(m3, of_s + at, of_product + at, line + 12, to + 3 * LINE, by + 3 * LINE)
            at += row
            first_weight(m4, of_s + at, of_product + at, line + 16, to + 4 * LINE, by + 4 * LINE)
            at += row
            first_weight(m5, of_s + at, of_product + at, line + 20, to + 5 * LINE, by + 5 * LINE)


@njit
def first_weight(m, of_s, of_product, q, of_q, c):  # type: ignore[no-untyped-def]
    """One vector of those gradients."""
    add_to(of_s, m)
    store(of_product, multiply_add(splat(load1(q)), m, load(of_product)))
    store(of_q, multiply_add(m, load(c), load(of_q)))


@njit
def backward_block(a, task, block):  # type: ignore[no-untyped-def]
    """Gradients of the positions of a block, those of weights added to the sums of its task."""
    first, end = slot(slot(a, BLOCKS), block), slot(slot(a, BLOCKS), block + 1)
    start, dim, s_row = slot(span_at(a, first), 1), slot(a, DIM), slot(a, POSITION_ROW)
    n = slot(span_at(a, end - 1), 1) + slot(span_at(a, end - 1), 2) - start
    scratch, sums = slot(a, SCRATCH) + task * slot(a, SCRATCH_BYTES), task * slot(a, SUMS_BYTES)
    rooms, last = scratch + slot(a, AT_GRADIENTS), slot(a, LAYERS) - 1
    g, g_row = rooms + (last % 2) * slot(a, GRADIENTS_BYTES), layer(a, last, STRIDE)
    last_layer(a, start, values(a, last, task, block, start), g, g_row, n, sums)
    for i in range(last, 0, -1):
        outputs, inputs, x_row = layer(a, i, WIDTH), layer(a, i - 1, WIDTH), layer(a, i - 1, STRIDE)
        x, out = values(a, i - 1, task, block, start), rooms + ((i - 1) % 2) * slot(a, GRADIENTS_BYTES)
        add_rows(g, g_row, n, outputs, layer(a, i, GRAD_BIAS) + sums)
        add_products(g, g_row, x, x_row, n, outputs, inputs, layer(a, i, GRAD_WEIGHT) + sums)
        for p in range(inputs // LANES):
            panel = layer(a, i, BACKWARD) + p * outputs * LINE
            gated_product(g, g_row, panel, outputs, x + LINE * p, out + LINE * p, x_row, n)
        g, g_row = out, x_row
    s = scratch + slot(a, AT_POSITIONS)
    copy_rows(slot(a, SEQUENCE) + 4 * dim * start, 4 * dim, s, s_row, n, dim)
    for i in range(first, end):
        t = slot(span_at(a, i), 1) - start
        backward_span(a, scratch, i, s + t * s_row, g + t * g_row, sums)


@cached_cfunc(types.void(types.int64), nogil=True)
def score(a):  # type: ignore[no-untyped-def]
    """Scores and values of all positions, block by block."""
    task = draw(a)
    while task < slot(a, TASKS):
        for block in range(slot(slot(a, CUTS), task), slot(slot(a, CUTS), task + 1)):
            forward_block(a, task, block)
        task = draw(a)


@cached_cfunc(types.void(types.int64), nogil=True)
def weigh(a):  # type: ignore[no-untyped-def]
    """Softmax of the scores and the sum of weighted positions, row by row."""
    task = draw(a)
    while task < slot(a, TASKS):
        for row in range(slot(slot(a, ROW_CUTS), task), slot(slot(a, ROW_CUTS), task + 1)):
            weigh_row(a, row)
        task = draw(a)


@cached_cfunc(types.void(types.int64), nogil=True)
def unweigh(a):  # type: ignore[no-untyped-def]
    """Gradients of what `weigh` computes."""
    task = draw(a)
    while task < slot(a, TASKS):
        for row in range(slot(slot(a, ROW_CUTS), task), slot(slot(a, ROW_CUTS), task + 1)):
            unweigh_row(a, row)
        task = draw(a)


@cached_cfunc(types.void(types.int64), nogil=True)
def unscore(a):  # type: ignore[no-untyped-def]
    """Gradients of what `score` computes, of weights among them."""
    task = draw(a)
    while task < slot(a, TASKS):
        for block in range(slot(slot(a, CUTS), task), slot(slot(a, CUTS), task + 1)):
            backward_block(a, task, block)
        task = draw(a)


# C functions of the address of an argument block.
SCORE_KERNEL, WEIGH_KERNEL, UNWEIGH_KERNEL, UNSCORE_KERNEL = score, weigh, unweigh, unscore
