"""The backward pass of attention over jagged rows, which computes scores again."""

from __future__ import annotations

from numba import njit

from recgrad.kernels.simd import (
    LANES,
    LINE,
    field,
    load,
    load1,
    load16,
    load_i32,
    multiply,
    multiply_add,
    splat,
    splat16,
    store,
    subtract,
    total,
    zeros8,
    zeros16,
)
from recgrad.kernels.tiles import TILE, add_to, copy_rows, tile6
from recgrad.kernels.vector_math import exponential, sigmoid, silu_slope, where_visible
from recgrad.nn.attention.blocks import (
    _ONE,
    ALPHA,
    AT_BIAS,
    AT_GRAD,
    AT_KEY_ROWS,
    AT_KEYS,
    AT_OF_KEYS,
    AT_OF_SCORES,
    AT_OF_VALUES,
    AT_OUT,
    AT_QUERY,
    AT_RANGES,
    AT_SCORES,
    AT_STATS,
    AT_VALUE_PANELS,
    BLOCK,
    CONTEXTUAL,
    DQ,
    DV,
    EVERYTHING,
    GRAD_K,
    GRAD_K_ROW,
    GRAD_OUT,
    GRAD_OUT_ROW,
    GRAD_POSITION,
    GRAD_Q,
    GRAD_Q_ROW,
    GRAD_TIME,
    GRAD_V,
    GRAD_V_ROW,
    HEADS,
    K_ROW,
    MASK,
    OFFSETS,
    ORIGIN,
    OUT,
    OUT_ROW,
    POSITION,
    Q_ROW,
    QUERY_ROW,
    RANGE_FIELDS,
    SCALE,
    SCORE_ROW,
    SCRATCH,
    SCRATCH_BYTES,
    SHARES,
    SOFTMAX,
    STRETCH,
    SUMS_BYTES,
    TIME,
    TOPS,
    V_ROW,
    VALUE_ROW,
    K,
    Q,
    V,
    add_biases,
    add_weighted,
    clear,
    copy_scaled,
    drop_key,
    kept,
    narrow,
    number,
    score,
    set_ranges,
)
from recgrad.nn.attention.panels import HALF, make_panels


@njit
def backward_item(a, task, thread, item):  # type: ignore[no-untyped-def]
    """The gradients of one head of one row; those of biases are added to the sums of its task."""
    row, head = item // field(a, HEADS), item % field(a, HEADS)
    begin, end, dq, dv = (
        field(field(a, OFFSETS), row),
        field(field(a, OFFSETS), row + 1),
        field(a, DQ),
        field(a, DV),
    )
    scratch, length = field(a, SCRATCH) + thread * field(a, SCRATCH_BYTES), end - begin
    k = field(a, K) + begin * field(a, K_ROW) + 4 * dq * head
    v = field(a, V) + begin * field(a, V_ROW) + 4 * dv * head
    of_keys, of_values = scratch + field(a, AT_OF_KEYS), scratch + field(a, AT_OF_VALUES)
    make_panels(k, field(a, K_ROW), length, dq, scratch + field(a, AT_KEYS))
    make_panels(v, field(a, V_ROW), length, dv, scratch + field(a, AT_VALUE_PANELS))
    copy_rows(k, field(a, K_ROW), scratch + field(a, AT_KEY_ROWS), field(a, QUERY_ROW), length, dq)
    clear(of_keys, (length + TILE) * field(a, QUERY_ROW))
    clear(of_values, (length + TILE) * field(a, VALUE_ROW))
    for first in range(0, length, BLOCK):
        n = min(length - first, BLOCK)
        backward_block(a, task, scratch, row, head, begin, length, first, n)
    to = field(a, GRAD_K) + begin * field(a, GRAD_K_ROW) + 4 * dq * head
    copy_rows(of_keys, field(a, QUERY_ROW), to, field(a, GRAD_K_ROW), length, dq)
    to = field(a, GRAD_V) + begin * field(a, GRAD_V_ROW) + 4 * dv * head
    copy_rows(of_values, field(a, VALUE_ROW), to, field(a, GRAD_V_ROW), length, dv)


@njit
def backward_block(a, task, scratch, row, head, begin, length, first, n):  # type: ignore[no-untyped-def]
    """The gradients that a block of queries gives."""
    dq, dv, query_row, value_row = field(a, DQ), field(a, DV), field(a, QUERY_ROW), field(a, VALUE_ROW)
    query, grad, of_query = (
        scratch + field(a, AT_QUERY),
        scratch + field(a, AT_GRAD),
        scratch + field(a, AT_OUT),
    )
    ranges, stats, alpha = scratch + field(a, AT_RANGES), scratch + field(a, AT_STATS), number(a, ALPHA)
    q = field(a, Q) + (begin + first) * field(a, Q_ROW) + 4 * dq * head
    copy_scaled(q, field(a, Q_ROW), query, query_row, n, dq, alpha)
    g = field(a, GRAD_OUT) + (begin + first) * field(a, GRAD_OUT_ROW) + 4 * dv * head
    copy_scaled(g, field(a, GRAD_OUT_ROW), grad, value_row, n, dv, _ONE)
    clear(of_query, (n + TILE) * query_row)
    if field(a, SOFTMAX):
        o = field(a, OUT) + (begin + first) * field(a, OUT_ROW) + 4 * dv * head
        for r in range(n):
            c = zeros16()
            for i in range(0, 4 * dv, LINE):
                c = multiply_add(load16(o + r * field(a, OUT_ROW) + i), load16(grad + r * value_row + i), c)
            store(stats + 4 * r, total(c))
    low_a, high_a, low_b, high_b = set_ranges(a, ranges, first, n, length, row)
    for start in range(low_a, high_a, STRETCH):
        backward_stretch(a, task, scratch, head, begin, first, n, start, min(high_a - start, STRETCH))
    for start in range(low_b, high_b, STRETCH):
        backward_stretch(a, task, scratch, head, begin, first, n, start, min(high_b - start, STRETCH))
    to = field(a, GRAD_Q) + (begin + first) * field(a, GRAD_Q_ROW) + 4 * dq * head
    for r in range(n):
        for i in range(0, 4 * dq, LINE):
            x = multiply(splat16(alpha), load16(of_query + r * query_row + i))
            store(to + r * field(a, GRAD_Q_ROW) + i, x)


@njit
def backward_stretch(a, task, scratch, head, begin, first, n, start, count):  # type: ignore[no-untyped-def]
    """Adds the gradients of a block of queries and a stretch of keys."""
    ranges, bias = scratch + field(a, AT_RANGES), scratch + field(a, AT_BIAS)
    scores, of_scores = scratch + field(a, AT_SCORES), scratch + field(a, AT_OF_SCORES)
    dq, dv, query_row, value_row = field(a, DQ), field(a, DV), field(a, QUERY_ROW), field(a, VALUE_ROW)
    query, grad, row = scratch + field(a, AT_QUERY), scratch + field(a, AT_GRAD), field(a, SCORE_ROW)
    narrow(ranges, n, start, count)
    score(a, ranges, query, query_row, dq, scratch + field(a, AT_KEYS) + 4 * start * dq, n, count, scores)
    panels = scratch + field(a, AT_VALUE_PANELS) + 4 * start * dv
    score(a, ranges, grad, value_row, dv, panels, n, count, of_scores)
    for r in range(n):
        seen, s, g = ranges + 8 * RANGE_FIELDS * r, scores + r * row, of_scores + r * row
        low, high = field(seen, 4), field(seen, 5)
        if low >= high:
            continue
        add_biases(a, s, first + r, start, begin, low, high, bias)
        key = drop_key(a, begin + first + r, head)
        if field(a, SOFTMAX):
            at = 4 * ((begin + first + r) * field(a, HEADS) + head)
            mean = load1(scratch + field(a, AT_STATS) + 4 * r)
            top, share = load1(field(a, TOPS) + at), load1(field(a, SHARES) + at)
            unsoftmax_row(a, s, g, seen, start, key, top, share, mean)
        else:
            unsilu_row(a, s, g, seen, start, key, number(a, SCALE))
        add_bias_gradients(a, task, g, first + r, start, low, high, bias)
    # Which key query 0 of the block weighs last, from the stretch on.
    last = first - start if field(a, MASK) != EVERYTHING and field(a, CONTEXTUAL) == 0 else count
    keys = scratch + field(a, AT_KEY_ROWS) + start * query_row
    add_weighted(a, ranges, of_scores, keys, query_row, dq, n, scratch + field(a, AT_OUT), query_row)
    to = scratch + field(a, AT_OF_KEYS) + start * query_row
    add_transposed(a, of_scores, query, query_row, dq, n, count, last, to, query_row)
    to = scratch + field(a, AT_OF_VALUES) + start * value_row
    add_transposed(a, scores, grad, value_row, dv, n, count, last, to, value_row)


@njit
def unsilu_row(a, scores, of_scores, seen, start, key, scale):  # type: ignore[no-untyped-def]
    """Weights in place of scores, and gradients of scores in place of those of weights."""
    high = field(seen, 5)
    for j in range(field(seen, 4), high, LANES):
        s, g = scores + 4 * j, of_scores + 4 * j
        if high - j > HALF:
            unsilu_piece(zeros16(), a, s, g, seen, start + j, key, scale)
        else:
            unsilu_piece(zeros8(), a, s, g, seen, start + j, key, scale)
            store(s + 4 * HALF, zeros8())
            store(g + 4 * HALF, zeros8())


@njit
def unsilu_piece(zeros, a, scores, of_scores, seen, at, key, scale):  # type: ignore[no-untyped-def]
    """The same of as many keys as `zeros` has, from key `at` on."""
    s, g, by = load(zeros, scores), load(zeros, of_scores), splat(zeros, scale)
    sigma = sigmoid(s)
    x = multiply(multiply(s, sigma), by)
    d = multiply(multiply(g, silu_slope(s, sigma)), by)
    a0, a1, b0, b1 = field(seen, 0), field(seen, 1), field(seen, 2), field(seen, 3)
    x = where_visible(x, zeros, a0 - at, a1 - at, b0 - at, b1 - at)
    d = where_visible(d, zeros, a0 - at, a1 - at, b0 - at, b1 - at)
    store(scores, kept(a, x, key, at))
    store(of_scores, kept(a, d, key, at))


@njit
def unsoftmax_row(a, scores, of_scores, seen, start, key, top, share, mean):  # type: ignore[no-untyped-def]
    """The same for softmax: w·(g − Σ w·g), with that sum as `mean`."""
    a0, a1, b0, b1 = field(seen, 0), field(seen, 1), field(seen, 2), field(seen, 3)
    for j in range(field(seen, 4), field(seen, 5), LANES):
        g, at = load16(of_scores + 4 * j), start + j
        e = exponential(subtract(load16(scores + 4 * j), splat16(top)))
        w = where_visible(multiply(e, splat16(share)), zeros16(), a0 - at, a1 - at, b0 - at, b1 - at)
        store(scores + 4 * j, kept(a, w, key, at))
        d = multiply(w, subtract(kept(a, g, key, at), splat16(mean)))
        # Where there is no key, g may be anything, and 0 times it NaN.
        store(of_scores + 4 * j, where_visible(d, zeros16(), a0 - at, a1 - at, b0 - at, b1 - at))


@njit
def add_bias_gradients(a, task, of_scores, i, first_key, low, high, bias):  # type: ignore[no-untyped-def]
    """Gradients of a query's biases, added to the sums of the task; buckets are those of `add_biases`."""
    if field(a, POSITION) != 0:
        to = field(a, GRAD_POSITION) + task * field(a, SUMS_BYTES) + 4 * (field(a, ORIGIN) - i + first_key)
        for p in range(4 * low, 4 * high, LINE):
            add_to(to + p, load16(of_scores + p))
    if field(a, TIME) != 0:
        sums = field(a, GRAD_TIME) + task * field(a, SUMS_BYTES)
        for j in range(low, high):
            to = sums + 4 * load_i32(bias + 4 * (STRETCH + LANES + j))
            store(to, load1(to) + load1(of_scores + 4 * j))


@njit
def add_transposed(a, weights, x, x_row, width, n, count, first, out, out_row):  # type: ignore[no-untyped-def]
    """out [keys, width] += weightsᵀ · x [n, width]; query r weighs no key after first + r.

    The last tile may run into the columns after the keys, which are made zero.
    """
    row = field(a, SCORE_ROW)
    for r in range(n):
        store(weights + r * row + (4 * count + LINE - 1) // LINE * LINE, zeros16())
    for j in range(0, count, TILE):
        skip = max(j - first, 0)
        if skip >= n:
            break
        at, by, to = weights + skip * row + 4 * j, x + skip * x_row, out + j * out_row
        for i in range(0, 4 * width, LINE):
            c0, c1, c2, c3, c4, c5 = tile6(at, 4, row, by + i, x_row, n - skip, zeros16())
            add_to(to + i, c0)
            add_to(to + out_row + i, c1)
            add_to(to + 2 * out_row + i, c2)
            add_to(to + 3 * out_row + i, c3)
            add_to(to + 4 * out_row + i, c4)
            add_to(to + 5 * out_row + i, c5)
