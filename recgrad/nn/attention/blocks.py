"""Kernels of self-attention over the positions of rows of different lengths, and of its gradients.

A thread takes one head of one row at a time. Queries go in blocks of BLOCK, keys in stretches of
STRETCH, so that a block of scores lies in the cache and no matrix of length × length exists. Every
query sees at most two ranges of keys, [a0, a1) and [b0, b1); tiles that no query sees are skipped.
Backward computes the scores again. A head of a row has one owner, and gradients of biases are summed
by task, tasks being cut by lengths alone: results do not depend on the number of threads.

`recgrad.nn.attention.jagged` fills in the argument blocks and has the formulas.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from recgrad.kernels.parallel import FIRST, next_task, thread_number
from recgrad.kernels.simd import (
    LANES,
    LINE,
    field,
    load1,
    load16,
    load_f64,
    load_i32,
    multiply,
    splat,
    splat16,
    store,
    store_i32,
    store_i64,
    zeros16,
)
from recgrad.kernels.tiles import TILE, add_to, tile3, tile6
from recgrad.kernels.vector_math import (
    bits64,
    drawn_above,
    mixed_bits,
)
from recgrad.nn.attention.panels import HALF, half_tile6, half_tile12, store6

BLOCK = 48  # queries at a time
STRETCH = 128  # keys at a time

# What an argument block holds: int64 numbers and addresses; a `_ROW` is bytes from one position to the next.
(TASKS, CUTS, OFFSETS, HEADS, DQ, DV) = range(FIRST, FIRST + 6)
(Q, Q_ROW, K, K_ROW, V, V_ROW, OUT, OUT_ROW) = range(DV + 1, DV + 9)
(SOFTMAX, NUMBERS, TOPS, SHARES) = range(OUT_ROW + 1, OUT_ROW + 5)
(MASK, CONTEXTUAL, TARGETS, WINDOW, NEAR, GLOBAL) = range(SHARES + 1, SHARES + 7)
(POSITION, ORIGIN, TIME, TIMES, QUERY_TIMES, GUESSES, BOUNDS) = range(GLOBAL + 1, GLOBAL + 8)
(DROP_BELOW, DROP_KEY) = range(BOUNDS + 1, BOUNDS + 3)
(SCRATCH, SCRATCH_BYTES, QUERY_ROW, VALUE_ROW, SCORE_ROW) = range(DROP_KEY + 1, DROP_KEY + 6)
(AT_KEYS, AT_VALUES, AT_QUERY, AT_SCORES, AT_OUT, AT_STATS, AT_RANGES, AT_BIAS) = range(
    SCORE_ROW + 1, SCORE_ROW + 9
)
(AT_VALUE_PANELS, AT_KEY_ROWS, AT_OF_SCORES, AT_GRAD, AT_OF_KEYS, AT_OF_VALUES) = range(
    AT_BIAS + 1, AT_BIAS + 7
)
(GRAD_OUT, GRAD_OUT_ROW, GRAD_Q, GRAD_Q_ROW, GRAD_K, GRAD_K_ROW, GRAD_V, GRAD_V_ROW) = range(
    AT_OF_VALUES + 1, AT_OF_VALUES + 9
)
(SUMS_BYTES, GRAD_POSITION, GRAD_TIME) = range(GRAD_V_ROW + 1, GRAD_V_ROW + 4)
ARGUMENTS = GRAD_TIME + 1
# What MASK may be, and what NUMBERS holds.
TARGET_AWARE, EVERYTHING, SEMI_LOCAL = range(3)
ALPHA, SCALE, KEPT = range(3)
RANGE_FIELDS = 6  # a0, a1, b0, b1 of a query; lowest and highest key of its tile in the stretch

_LOWEST = np.float32(-1e30)
_ONE = np.float32(1)
_ZERO = np.float32(0)


@njit
def number(a, i):  # type: ignore[no-untyped-def]
    """One of the float32 settings."""
    return load1(field(a, NUMBERS) + 4 * i)


@njit
def visible(a, i, length, row):  # type: ignore[no-untyped-def]
    """The two ranges of keys that query i of a row sees."""
    c, targets = field(a, CONTEXTUAL), field(a, TARGETS)
    h = length - field(targets, row) if targets != 0 else length
    if field(a, MASK) == EVERYTHING:
        return 0, length, 0, 0
    if field(a, MASK) == SEMI_LOCAL:
        if i >= h:
            return 0, h, 0, 0
        k = max(field(a, GLOBAL), c)
        return 0, min(i + 1, k), max(i - field(a, NEAR) + 1, k), i + 1
    if i < min(c, h):
        return 0, h, 0, 0
    w, newest, low = field(a, WINDOW), min(i, h), 0
    if w > 0 and newest - max(c - 1, 0) - w > 0:
        low = newest - w
    return (low, i + 1, 0, 0) if i < h else (low, h, i, i + 1)


@njit
def set_ranges(a, ranges, first, n, length, row):  # type: ignore[no-untyped-def]
    """Writes what the queries of a block see; returns the hulls of all their first and second ranges."""
    low_a, high_a, low_b, high_b = length, 0, length, 0
    for r in range(n):
        a0, a1, b0, b1 = visible(a, first + r, length, row)
        at = ranges + 8 * RANGE_FIELDS * r
        store_i64(at, a0)
        store_i64(at + 8, a1)
        store_i64(at + 16, b0)
        store_i64(at + 24, b1)
        if a0 < a1:
            low_a, high_a = min(low_a, a0), max(high_a, a1)
        if b0 < b1:
            low_b, high_b = min(low_b, b0), max(high_b, b1)
    low_a, low_b = low_a // LANES * LANES, low_b // LANES * LANES
    if low_a < high_a and low_b < high_b and low_b <= high_a:  # one range, so that no key counts twice
        low_a, high_a, low_b, high_b = min(low_a, low_b), max(high_a, high_b), 0, 0
    return low_a, high_a, low_b, high_b


@njit
def narrow(ranges, n, start, count):  # type: ignore[no-untyped-def]
    """For each tile of queries, which keys of a stretch any of them sees: from and to, relative to it."""
    for t in range(0, n, TILE):
        low, high = count, 0
        for r in range(t, min(t + TILE, n)):
            at = ranges + 8 * RANGE_FIELDS * r
            for p in range(0, 4, 2):
                begin, end = max(field(at, p) - start, 0), min(field(at, p + 1) - start, count)
                if begin < end:
                    low, high = min(low, begin), max(high, end)
        if low >= high:
            low, high = 0, 0
        for r in range(t, min(t + TILE, n)):
            store_i64(ranges + 8 * (RANGE_FIELDS * r + 4), low // LANES * LANES)
            store_i64(ranges + 8 * (RANGE_FIELDS * r + 5), high)


@njit
def copy_scaled(source, source_row, target, target_row, n, width, by):  # type: ignore[no-untyped-def]
    """n rows times a number, and zeros up to the next whole tile."""
    for t in range((n + TILE - 1) // TILE * TILE):
        for i in range(0, 4 * width, LINE):
            if t < n:
                store(target + t * target_row + i, multiply(splat16(by), load16(source + t * source_row + i)))
            else:
                store(target + t * target_row + i, zeros16())


@njit
def clear(target, size):  # type: ignore[no-untyped-def]
    """Zeros in `size` bytes, a multiple of a line."""
    for i in range(0, size, LINE):
        store(target + i, zeros16())


@njit
def score(a, ranges, x, x_row, width, panels, n, count, out):  # type: ignore[no-untyped-def]
    """Products of n rows of x with the keys of a stretch, where tiles of queries see them; else zeros."""
    row = field(a, SCORE_ROW)
    for p in range(0, count, LANES):
        panel = panels + 4 * p * width
        if count - p <= HALF:
            score_half(ranges, x, x_row, width, panel, n, p, out + 4 * p, row)
            continue
        for t in range(0, n, TILE):
            at, to, hull = x + t * x_row, out + t * row + 4 * p, ranges + 8 * RANGE_FIELDS * t
            if p < field(hull, 4) or p >= field(hull, 5):
                for r in range(TILE):
                    store(to + r * row, zeros16())
            elif n - t > 3:
                c0, c1, c2, c3, c4, c5 = tile6(at, x_row, 4, panel, LINE, width, zeros16())
                store6(to, row, c0, c1, c2, c3, c4, c5)
            else:
                c0, c1, c2 = tile3(at, x_row, 4, panel, LINE, width, zeros16())
                store(to, c0)
                store(to + row, c1)
                store(to + 2 * row, c2)


@njit
def sees(ranges, t, p):  # type: ignore[no-untyped-def]
    """Whether the tile of queries t sees keys of the panel that begins at p, relative to the stretch."""
    return field(ranges, RANGE_FIELDS * t + 4) <= p < field(ranges, RANGE_FIELDS * t + 5)


@njit
def score_half(ranges, x, x_row, width, panel, n, p, out, row):  # type: ignore[no-untyped-def]
    """The same with a panel of at most eight keys; scores behind them, which no query sees, have no worth."""
    t = 0
    while t < n:
        at, to = x + t * x_row, out + t * row
        if not sees(ranges, t, p):
            for r in range(TILE):
                store(to + r * row, zeros16())
            t += TILE
        elif n - t > TILE and sees(ranges, t + TILE, p):
            c0, c1, c2, c3, c4, c5, d0, d1, d2, d3, d4, d5 = half_tile12(at, x_row, panel, width)
            store6(to, row, c0, c1, c2, c3, c4, c5)
            store6(to + TILE * row, row, d0, d1, d2, d3, d4, d5)
            t += 2 * TILE
        else:
            c0, c1, c2, c3, c4, c5 = half_tile6(at, x_row, panel, width)
            store6(to, row, c0, c1, c2, c3, c4, c5)
            t += TILE


@njit
def add_weighted(a, ranges, weights, x, x_row, width, n, out, out_row):  # type: ignore[no-untyped-def]
    """out [n, width] += weights [n, keys] · x [keys, width], over the keys that each tile sees."""
    row = field(a, SCORE_ROW)
    for t in range(0, n, TILE):
        low, high = field(ranges, RANGE_FIELDS * t + 4), field(ranges, RANGE_FIELDS * t + 5)
        at, by, to = weights + t * row + 4 * low, x + low * x_row, out + t * out_row
        if low >= high:
            continue
        for i in range(0, 4 * width, LINE):
            if n - t > 3:
                c0, c1, c2, c3, c4, c5 = tile6(at, row, 4, by + i, x_row, high - low, zeros16())
                add_to(to + 3 * out_row + i, c3)
                add_to(to + 4 * out_row + i, c4)
                add_to(to + 5 * out_row + i, c5)
            else:
                c0, c1, c2 = tile3(at, row, 4, by + i, x_row, high - low, zeros16())
            add_to(to + i, c0)
            add_to(to + out_row + i, c1)
            add_to(to + 2 * out_row + i, c2)


@njit
def time_bucket(a, delta):  # type: ignore[no-untyped-def]
    """The bucket of a difference of times: a guess by its leading bits, mended by one comparison."""
    apart = min(max(abs(delta), 1.0), 4e18)
    guess = load_i32(field(a, GUESSES) + 4 * ((bits64(apart) >> 49) - (1023 << 3)))
    return guess + (1 if apart >= load_f64(field(a, BOUNDS) + 8 * (guess + 1)) else 0)


@njit
def time_biases(a, position, start, low, high, bias):  # type: ignore[no-untyped-def]
    """The time biases of a query (a position of all) with keys start + [low, high), and their buckets."""
    now, times = load_f64(field(a, QUERY_TIMES) + 8 * position), field(a, TIMES) + 8 * start
    for j in range(low, high):
        bucket = time_bucket(a, now - load_f64(times + 8 * j))
        store_i32(bias + 4 * (STRETCH + LANES + j), np.int32(bucket))
        store(bias + 4 * j, load1(field(a, TIME) + 4 * bucket))


@njit
def add_biases(a, scores, i, first_key, begin, low, high, bias):  # type: ignore[no-untyped-def]
    """Adds biases to the scores of query i of a row that begins at position `begin`."""
    if field(a, POSITION) != 0:
        at = field(a, POSITION) + 4 * (field(a, ORIGIN) - i + first_key)
        for p in range(4 * low, 4 * high, LINE):
            add_to(scores + p, load16(at + p))
    if field(a, TIME) != 0:
        time_biases(a, begin + i, begin + first_key, low, high, bias)
        for p in range(4 * low, 4 * high, LINE):
            add_to(scores + p, load16(bias + p))


@njit
def kept(a, x, key, first):  # type: ignore[no-untyped-def]
    """x after dropout of attention weights; the same draws forwards and backwards."""
    if field(a, DROP_BELOW) == 0:
        return x
    return multiply(splat(x, number(a, KEPT)), drawn_above(x, key, first, field(a, DROP_BELOW)))


@njit
def drop_key(a, position, head):  # type: ignore[no-untyped-def]
    """What the dropout of a query and head draws by."""
    return mixed_bits(field(a, DROP_KEY) + mixed_bits(position * field(a, HEADS) + head))


def over_items(body: Any) -> Any:
    """A kernel, still to be compiled, that calls a function of (a, task, thread, item) for all items."""

    def kernel(a: int) -> None:
        thread, task = thread_number(a), next_task(a)
        while task < field(a, TASKS):
            for item in range(field(field(a, CUTS), task), field(field(a, CUTS), task + 1)):
                body(a, task, thread, item)
            task = next_task(a)

    return kernel
