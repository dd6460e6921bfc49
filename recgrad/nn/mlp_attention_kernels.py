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
from typing import Any

import numpy as np
from numba import njit

from recgrad.kernels.parallel import FIRST, next_task
from recgrad.kernels.products import TILES, finishing
from recgrad.kernels.simd import (
    LANES,
    LINE,
    field,
    keep_positive,
    load1,
    load16,
    multiply_add,
    splat16,
    store,
    total,
    zeros16,
)
from recgrad.kernels.tiles import add_rows, add_to, copy_rows, store_row

# What an argument block holds: int64 numbers and addresses.
(TASKS, CUTS, ROW_CUTS, BLOCKS, SPANS, OFFSETS, KEEP, ROOM, LAYERS, TABLE) = range(FIRST, FIRST + 10)
(DIM, SEQUENCE, QUERY, PER_ROW, A, C, A_BACK, C_BACK, SCORE, WEIGHTS, OUT) = range(TABLE + 1, TABLE + 12)
(SCRATCH, SCRATCH_BYTES, POSITION_ROW, AT_POSITIONS, AT_QUERY, AT_OUT, AT_OF_QUERY) = range(OUT + 1, OUT + 8)
(AT_GRADIENTS, GRADIENTS_BYTES, GRAD_SCORES) = range(AT_OF_QUERY + 1, AT_OF_QUERY + 4)
(GRAD_OUT, GRAD_SEQUENCE, GRAD_QUERY, GRAD_PER_ROW) = range(GRAD_SCORES + 1, GRAD_SCORES + 5)
(SUMS_BYTES, GRAD_A, GRAD_C, GRAD_SCORE) = range(GRAD_PER_ROW + 1, GRAD_PER_ROW + 5)
ARGUMENTS = GRAD_SCORE + 1
# What the table holds of each layer.
(INPUTS, WIDTH, STRIDE, VALUES, FORWARD, BACKWARD, BIAS, GRAD_WEIGHT, GRAD_BIAS) = range(9)
LAYER_FIELDS = 9
SPAN_FIELDS = 3  # row, first position, number of positions

product, product_from, group = TILES.product, TILES.product_from, TILES.group
SLACK = TILES.slack  # rows that every block has more
_LOWEST = np.float32(-np.inf)


@njit
def layer(a, i, column):  # type: ignore[no-untyped-def]
    """A field of a layer."""
    return field(field(a, TABLE), i * LAYER_FIELDS + column)


@njit
def span_at(a, i):  # type: ignore[no-untyped-def]
    """Where a span is described."""
    return field(a, SPANS) + 8 * SPAN_FIELDS * i


@njit
def values(a, i, task, block, start):  # type: ignore[no-untyped-def]
    """Where a layer's outputs for a block begin: kept for the backward pass, or only until the next block."""
    row = start + SLACK * block if field(a, KEEP) else task * field(a, ROOM)
    return layer(a, i, VALUES) + row * layer(a, i, STRIDE)


@finishing()
def store_positive(t, p, value, to):  # type: ignore[no-untyped-def]
    """max(0, value) to a matrix of rows."""
    out, row = to
    store(out + t * row + LINE * p, keep_positive(value, value))


@finishing()
def store_gated(t, p, value, to):  # type: ignore[no-untyped-def]
    """The value where a gate, which lies as the output does, is above 0."""
    out, row, gate = to
    at = t * row + LINE * p
    store(out + at, keep_positive(value, load16(gate + at)))


@finishing()
def store_sum(t, p, value, to):  # type: ignore[no-untyped-def]
    """The value added to a matrix of rows."""
    sums, row = to
    add_to(sums + t * row + LINE * p, value)


@finishing()
def store_weighted(t, p, value, to):  # type: ignore[no-untyped-def]
    """value + weight · part, exactly `count` rows of `width` numbers, with a weight for each row."""
    out, row, weights, part, count, width = to
    if t < count:
        whole = multiply_add(splat16(load1(weights + 4 * t)), load16(part + LINE * p), value)
        store_row(out + t * row + LINE * p, whole, width - LANES * p)


@njit
def forward_span(a, scratch, i, s, x):  # type: ignore[no-untyped-def]
    """The first layer of a span whose positions lie at s, to x."""
    row, count, dim = field(span_at(a, i), 0), field(span_at(a, i), 2), field(a, DIM)
    s_row, x_row, width = field(a, POSITION_ROW), layer(a, 0, STRIDE), layer(a, 0, WIDTH)
    q, c = field(a, QUERY) + 4 * dim * row, field(a, PER_ROW) + 4 * width * row
    panel, vectors, p = LINE * (dim + SLACK), width // LANES, 0
    while p < vectors:
        end = p + group(vectors - p)
        for j in range(p, end):
            of_s, of_product, to = field(a, A) + j * panel, field(a, C) + j * panel, scratch + (j - p) * panel
            for d in range(dim):
                by = splat16(load1(q + 4 * d))
                store(to + LINE * d, multiply_add(by, load16(of_product + LINE * d), load16(of_s + LINE * d)))
        bias = c + LINE * p
        product_from(store_positive, (x, x_row), s, s_row, 4, scratch, panel, LINE, dim, bias, count, p, end)
        p = end


@njit
def forward_block(a, task, block):  # type: ignore[no-untyped-def]
    """Scores of the positions of a block, to WEIGHTS."""
    first, end = field(field(a, BLOCKS), block), field(field(a, BLOCKS), block + 1)
    start, dim, s_row = field(span_at(a, first), 1), field(a, DIM), field(a, POSITION_ROW)
    n = field(span_at(a, end - 1), 1) + field(span_at(a, end - 1), 2) - start
    scratch = field(a, SCRATCH) + task * field(a, SCRATCH_BYTES)
    s, x, x_row = scratch + field(a, AT_POSITIONS), values(a, 0, task, block, start), layer(a, 0, STRIDE)
    copy_rows(field(a, SEQUENCE) + 4 * dim * start, 4 * dim, s, s_row, n, dim)
    for i in range(first, end):
        t = field(span_at(a, i), 1) - start
        forward_span(a, scratch, i, s + t * s_row, x + t * x_row)
    for i in range(1, field(a, LAYERS)):
        out, out_row = values(a, i, task, block, start), layer(a, i, STRIDE)
        steps, weight, bias = layer(a, i, INPUTS), layer(a, i, FORWARD), layer(a, i, BIAS)
        vectors, panel = layer(a, i, WIDTH) // LANES, steps * LINE
        product_from(
            store_positive, (out, out_row), x, x_row, 4, weight, panel, LINE, steps, bias, n, 0, vectors
        )
        x, x_row = out, out_row
    width = layer(a, field(a, LAYERS) - 1, WIDTH)
    for t in range(n):
        c = zeros16()
        for p in range(0, 4 * width, LINE):
            c = multiply_add(load16(x + t * x_row + p), load16(field(a, SCORE) + p), c)
        store(field(a, WEIGHTS) + 4 * (start + t), total(c))


@njit
def weigh_row(a, task, row):  # type: ignore[no-untyped-def]
    """Softmax of a row's scores, in their place, and the sum of its positions by these weights."""
    begin, end, dim = field(field(a, OFFSETS), row), field(field(a, OFFSETS), row + 1), field(a, DIM)
    w, count = field(a, WEIGHTS) + 4 * begin, end - begin
    top, whole = _LOWEST, np.float32(0)
    for t in range(count):
        top = max(top, load1(w + 4 * t))
    for t in range(count):
        e = np.float32(math.exp(load1(w + 4 * t) - top))
        store(w + 4 * t, e)
        whole += e
    for t in range(count):
        store(w + 4 * t, load1(w + 4 * t) / whole)
    s, out = field(a, SEQUENCE) + 4 * dim * begin, field(a, OUT) + 4 * dim * row
    for d in range(0, dim - LANES + 1, LANES):
        c = zeros16()
        for t in range(count):
            c = multiply_add(splat16(load1(w + 4 * t)), load16(s + 4 * (dim * t + d)), c)
        store(out + 4 * d, c)
    for d in range(dim - dim % LANES, dim):
        x = np.float32(0)
        for t in range(count):
            x += load1(w + 4 * t) * load1(s + 4 * (dim * t + d))
        store(out + 4 * d, x)


@njit
def dot(x, y, n):  # type: ignore[no-untyped-def]
    """Σ x·y of n numbers each."""
    c, rest = zeros16(), np.float32(0)
    for i in range(0, n - LANES + 1, LANES):
        c = multiply_add(load16(x + 4 * i), load16(y + 4 * i), c)
    for i in range(n - n % LANES, n):
        rest += load1(x + 4 * i) * load1(y + 4 * i)
    return total(c) + rest


@njit
def unweigh_row(a, task, row):  # type: ignore[no-untyped-def]
    """The gradient of a row's scores, w_t·(o·s_t − Σ_u w_u·(o·s_u)): o is that of the row's output.

    A row of one position gets exactly 0, for its weight is 1 whatever its score.
    """
    begin, end, dim = field(field(a, OFFSETS), row), field(field(a, OFFSETS), row + 1), field(a, DIM)
    w, g, mean = field(a, WEIGHTS) + 4 * begin, field(a, GRAD_SCORES) + 4 * begin, np.float32(0)
    s, o = field(a, SEQUENCE) + 4 * dim * begin, field(a, GRAD_OUT) + 4 * dim * row
    for t in range(end - begin):
        of_weight = dot(o, s + 4 * dim * t, dim)
        store(g + 4 * t, of_weight)
        mean += load1(w + 4 * t) * of_weight
    for t in range(end - begin):
        store(g + 4 * t, load1(w + 4 * t) * (load1(g + 4 * t) - mean))


@njit
def last_layer(a, start, x, g, row, n, sums):  # type: ignore[no-untyped-def]
    """The gradient g of the last layer's outputs x, and of the weights that make scores of them."""
    of_scores = field(a, GRAD_SCORES) + 4 * start
    for p in range(0, 4 * layer(a, field(a, LAYERS) - 1, WIDTH), LINE):
        weight, c = load16(field(a, SCORE) + p), zeros16()
        for t in range(n):
            by, of_score = load16(x + t * row + p), splat16(load1(of_scores + 4 * t))
            c = multiply_add(of_score, by, c)
            store(g + t * row + p, keep_positive(multiply_add(of_score, weight, zeros16()), by))
        add_to(field(a, GRAD_SCORE) + sums + p, c)


@njit
def backward_span(a, scratch, i, s, g, sums):  # type: ignore[no-untyped-def]
    """The first layer of a span: g is the gradient of s·M + c."""
    row, start, count = field(span_at(a, i), 0), field(span_at(a, i), 1), field(span_at(a, i), 2)
    dim, g_row, width = field(a, DIM), layer(a, 0, STRIDE), layer(a, 0, WIDTH)
    of_row = field(a, GRAD_PER_ROW) + 4 * width * i
    for p in range(0, 4 * width, LINE):
        store(of_row + p, zeros16())
    add_rows(g, g_row, count, width, of_row)
    q, o = scratch + field(a, AT_QUERY), scratch + field(a, AT_OUT)
    copy_rows(field(a, QUERY) + 4 * dim * row, 0, q, 0, 1, dim)
    copy_rows(field(a, GRAD_OUT) + 4 * dim * row, 0, o, 0, 1, dim)
    out, w = field(a, GRAD_SEQUENCE) + 4 * dim * start, field(a, WEIGHTS) + 4 * start
    to, panel, vectors, p = (out, 4 * dim, w, o, count, dim), LINE * width, (dim + LANES - 1) // LANES, 0
    while p < vectors:
        end = p + group(vectors - p)
        for j in range(p, end):
            of_s, of_product = field(a, A_BACK) + j * panel, field(a, C_BACK) + j * panel
            part, at = load16(q + LINE * j), scratch + (j - p) * panel
            for h in range(width):
                m = multiply_add(part, load16(of_product + LINE * h), load16(of_s + LINE * h))
                store(at + LINE * h, m)
        product(store_weighted, to, g, g_row, 4, scratch, panel, LINE, width, count, p, end)
        p = end
    of_q = scratch + field(a, AT_OF_QUERY)
    first_weights(a, q, of_q, s, g, count, sums)
    for d in range(dim):
        store(field(a, GRAD_QUERY) + 4 * (dim * i + d), total(load16(of_q + LINE * d)))


@njit
def first_weights(a, q, of_q, s, g, count, sums):  # type: ignore[no-untyped-def]
    """Gradients of A, C and q from that of M = A + diag(q)·C, which is sᵀ·g."""
    dim, width, s_row, g_row = field(a, DIM), layer(a, 0, WIDTH), field(a, POSITION_ROW), layer(a, 0, STRIDE)
    for d in range(dim + SLACK):
        store(of_q + LINE * d, zeros16())
    panel = LINE * (dim + SLACK)
    to = (field(a, GRAD_A) + sums, field(a, GRAD_C) + sums, 4 * width, q, of_q, field(a, C), panel)
    product(first_weight, to, s, 4, s_row, g, LINE, g_row, count, dim, 0, width // LANES)


@finishing()
def first_weight(d, p, m, to):  # type: ignore[no-untyped-def]
    """One vector of those gradients."""
    of_s, of_product, row, q, of_q, c, panel = to
    at = d * row + LINE * p
    add_to(of_s + at, m)
    store(of_product + at, multiply_add(splat16(load1(q + 4 * d)), m, load16(of_product + at)))
    by = load16(c + panel * p + LINE * d)
    store(of_q + LINE * d, multiply_add(m, by, load16(of_q + LINE * d)))


@njit
def backward_block(a, task, block):  # type: ignore[no-untyped-def]
    """Gradients of the positions of a block, those of weights added to the sums of its task."""
    first, end = field(field(a, BLOCKS), block), field(field(a, BLOCKS), block + 1)
    start, dim, s_row = field(span_at(a, first), 1), field(a, DIM), field(a, POSITION_ROW)
    n = field(span_at(a, end - 1), 1) + field(span_at(a, end - 1), 2) - start
    scratch, sums = field(a, SCRATCH) + task * field(a, SCRATCH_BYTES), task * field(a, SUMS_BYTES)
    rooms, last = scratch + field(a, AT_GRADIENTS), field(a, LAYERS) - 1
    g, g_row = rooms + (last % 2) * field(a, GRADIENTS_BYTES), layer(a, last, STRIDE)
    last_layer(a, start, values(a, last, task, block, start), g, g_row, n, sums)
    for i in range(last, 0, -1):
        outputs, inputs, x_row = layer(a, i, WIDTH), layer(a, i - 1, WIDTH), layer(a, i - 1, STRIDE)
        x, out = values(a, i - 1, task, block, start), rooms + ((i - 1) % 2) * field(a, GRADIENTS_BYTES)
        add_rows(g, g_row, n, outputs, layer(a, i, GRAD_BIAS) + sums)
        vectors, sum_to = inputs // LANES, (layer(a, i, GRAD_WEIGHT) + sums, 4 * inputs)
        product(store_sum, sum_to, g, 4, g_row, x, LINE, x_row, n, outputs, 0, vectors)
        weight, panel = layer(a, i, BACKWARD), outputs * LINE
        product(store_gated, (out, x_row, x), g, g_row, 4, weight, panel, LINE, outputs, n, 0, vectors)
        g, g_row = out, x_row
    s = scratch + field(a, AT_POSITIONS)
    copy_rows(field(a, SEQUENCE) + 4 * dim * start, 4 * dim, s, s_row, n, dim)
    for i in range(first, end):
        t = field(span_at(a, i), 1) - start
        backward_span(a, scratch, i, s + t * s_row, g + t * g_row, sums)


def over_blocks(body: Any) -> Any:
    """A kernel, still to be compiled, that calls a function of (a, task, block) for all blocks."""
    return _over(CUTS, body)


def over_rows(body: Any) -> Any:
    """The same of (a, task, row) for all rows."""
    return _over(ROW_CUTS, body)


def _over(cuts: int, body: Any) -> Any:
    def kernel(a: int) -> None:
        task = next_task(a)
        while task < field(a, TASKS):
            for i in range(field(field(a, cuts), task), field(field(a, cuts), task + 1)):
                body(a, task, i)
            task = next_task(a)

    return kernel
