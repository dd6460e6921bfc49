"""The forward pass of attention over jagged rows."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from recgrad.kernels.simd import (
    LANES,
    LINE,
    add,
    field,
    load,
    load1,
    load16,
    multiply,
    splat,
    splat16,
    store,
    subtract,
    total,
    zeros8,
    zeros16,
)
from recgrad.kernels.tiles import TILE, copy_rows
from recgrad.kernels.vector_math import exponential, largest, maximum, sigmoid, where_visible
from recgrad.nn.attention.blocks import (
    _LOWEST,
    _ONE,
    _ZERO,
    ALPHA,
    AT_BIAS,
    AT_KEYS,
    AT_OUT,
    AT_QUERY,
    AT_RANGES,
    AT_SCORES,
    AT_STATS,
    AT_VALUES,
    BLOCK,
    DQ,
    DV,
    HEADS,
    K_ROW,
    OFFSETS,
    OUT,
    OUT_ROW,
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
def forward_item(a, task, thread, item):  # type: ignore[no-untyped-def]
    """The outputs of one head of one row."""
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
    make_panels(k, field(a, K_ROW), length, dq, scratch + field(a, AT_KEYS))
    copy_rows(v, field(a, V_ROW), scratch + field(a, AT_VALUES), field(a, VALUE_ROW), length, dv)
    for first in range(0, length, BLOCK):
        n = min(length - first, BLOCK)
        forward_block(a, scratch, row, head, begin, length, first, n)


@njit
def forward_block(a, scratch, row, head, begin, length, first, n):  # type: ignore[no-untyped-def]
    """The outputs of a block of queries."""
    dq, dv, value_row = field(a, DQ), field(a, DV), field(a, VALUE_ROW)
    query, out, stats = scratch + field(a, AT_QUERY), scratch + field(a, AT_OUT), scratch + field(a, AT_STATS)
    ranges, softmax = scratch + field(a, AT_RANGES), field(a, SOFTMAX)
    q = field(a, Q) + (begin + first) * field(a, Q_ROW) + 4 * dq * head
    copy_scaled(q, field(a, Q_ROW), query, field(a, QUERY_ROW), n, dq, number(a, ALPHA))
    clear(out, (n + TILE) * value_row)
    for r in range(n):
        store(stats + 8 * r, _LOWEST)
        store(stats + 8 * r + 4, _ZERO)
    low_a, high_a, low_b, high_b = set_ranges(a, ranges, first, n, length, row)
    for start in range(low_a, high_a, STRETCH):
        forward_stretch(a, scratch, head, begin, first, n, start, min(high_a - start, STRETCH))
    for start in range(low_b, high_b, STRETCH):
        forward_stretch(a, scratch, head, begin, first, n, start, min(high_b - start, STRETCH))
    to = field(a, OUT) + (begin + first) * field(a, OUT_ROW) + 4 * dv * head
    for r in range(n):
        by = _ONE
        if softmax:
            whole, at = load1(stats + 8 * r + 4), 4 * ((begin + first + r) * field(a, HEADS) + head)
            by = _ONE / whole if whole > _ZERO else _ZERO
            store(field(a, TOPS) + at, load1(stats + 8 * r))
            store(field(a, SHARES) + at, by)
        for i in range(0, 4 * dv, LINE):
            store(to + r * field(a, OUT_ROW) + i, multiply(splat16(by), load16(out + r * value_row + i)))


@njit
def forward_stretch(a, scratch, head, begin, first, n, start, count):  # type: ignore[no-untyped-def]
    """Adds what a block of queries takes from a stretch of keys."""
    ranges, out = scratch + field(a, AT_RANGES), scratch + field(a, AT_OUT)
    scores, stats, bias = (
        scratch + field(a, AT_SCORES),
        scratch + field(a, AT_STATS),
        scratch + field(a, AT_BIAS),
    )
    dq, dv, value_row, row = field(a, DQ), field(a, DV), field(a, VALUE_ROW), field(a, SCORE_ROW)
    panels = scratch + field(a, AT_KEYS) + 4 * start * dq
    narrow(ranges, n, start, count)
    score(a, ranges, scratch + field(a, AT_QUERY), field(a, QUERY_ROW), dq, panels, n, count, scores)
    for r in range(n):
        seen, s = ranges + 8 * RANGE_FIELDS * r, scores + r * row
        if field(seen, 4) >= field(seen, 5):
            continue
        add_biases(a, s, first + r, start, begin, field(seen, 4), field(seen, 5), bias)
        key = drop_key(a, begin + first + r, head)
        if field(a, SOFTMAX):
            softmax_row(a, s, seen, start, key, stats + 8 * r, out + r * value_row)
        else:
            silu_row(a, s, seen, start, key, number(a, SCALE))
    values = scratch + field(a, AT_VALUES) + start * value_row
    add_weighted(a, ranges, scores, values, value_row, dv, n, out, value_row)


@njit
def silu_row(a, scores, seen, start, key, scale):  # type: ignore[no-untyped-def]
    """SiLU of a query's scores times `scale`, 0 for keys that it does not see."""
    high = field(seen, 5)
    for j in range(field(seen, 4), high, LANES):
        if high - j > HALF:
            silu_piece(zeros16(), a, scores + 4 * j, seen, start + j, key, scale)
        else:
            silu_piece(zeros8(), a, scores + 4 * j, seen, start + j, key, scale)


@njit
def silu_piece(zeros, a, scores, seen, at, key, scale):  # type: ignore[no-untyped-def]
    """The same of as many keys as `zeros` has, from key `at` on."""
    s = load(zeros, scores)
    x = multiply(multiply(s, sigmoid(s)), splat(zeros, scale))
    a0, a1, b0, b1 = field(seen, 0), field(seen, 1), field(seen, 2), field(seen, 3)
    x = where_visible(x, zeros, a0 - at, a1 - at, b0 - at, b1 - at)
    store(scores, kept(a, x, key, at))


@njit
def softmax_row(a, scores, seen, start, key, stats, out):  # type: ignore[no-untyped-def]
    """exp(score − top) of a query so far; what was summed before is scaled to the new top."""
    a0, a1, b0, b1 = field(seen, 0), field(seen, 1), field(seen, 2), field(seen, 3)
    low, high, tops, lowest = field(seen, 4), field(seen, 5), splat16(_LOWEST), splat16(_LOWEST)
    for j in range(low, high, LANES):
        at = start + j
        s = where_visible(load16(scores + 4 * j), lowest, a0 - at, a1 - at, b0 - at, b1 - at)
        store(scores + 4 * j, s)
        tops = maximum(tops, s)
    before, whole = load1(stats), load1(stats + 4)
    top = max(before, largest(tops))
    if top > before and whole > _ZERO:
        by = np.float32(math.exp(before - top))
        whole *= by
        for i in range(0, 4 * field(a, DV), LINE):
            store(out + i, multiply(splat16(by), load16(out + i)))
    sums = zeros16()
    for j in range(low, high, LANES):
        at = start + j
        e = exponential(subtract(load16(scores + 4 * j), splat16(top)))
        e = where_visible(e, zeros16(), a0 - at, a1 - at, b0 - at, b1 - at)
        sums = add(sums, e)
        store(scores + 4 * j, kept(a, e, key, at))
    store(stats, top)
    store(stats + 4, whole + total(sums))
