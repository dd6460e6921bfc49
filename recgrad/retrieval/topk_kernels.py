"""The kernel of exact search: products of vectors, and the best k of each query kept as they arise.

No matrix of scores is written: a tile of 6 queries × 16 items is held in registers, compared there with
each query's k-th best score so far, and only what is above it goes on. Items come in their order, so an
item that ties with the k-th best is never better: ties go by item order.

    items    panels of 16: [panel, dim, 16]                a panel stays in the first cache
    queries  [query, dim], in blocks                       a block stays in the second
    kept     keys [query, capacity] of each part of items  a full line is cut to its best k

A key is an int64 that sorts as (score, −item): the bits of the score above those of the item, so that
no two keys are the same and the best k are the same set in whatever order they are found. Each score is
one sum over the dims in their order, whatever the tile: it does not depend on the other queries either.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from recgrad.kernels.parallel import FIRST, next_task
from recgrad.kernels.simd import (
    LANES,
    LINE,
    address,
    any_above,
    bits,
    field,
    lanes_above,
    load1,
    load16,
    load_i64,
    load_u8,
    lowest_bit,
    multiply_add,
    pointer,
    prefetch,
    splat16,
    store,
    store_i32,
    store_i64,
    zeros16,
)
from recgrad.kernels.tiles import TILE, tile3, tile6

AHEAD = 4  # panels that one query is compared with at a time

# The kernel's arguments: sizes, then addresses.
(
    QUERIES,  # how many
    DIM,
    ITEMS,  # how many there are; the last panel may be filled up
    TASK_QUERIES,  # of a task, a multiple of TILE
    LINES,  # queries filled up to whole tiles, those of them that are none with the limit inf
    K,
    CAPACITY,  # keys of a line: more than k
    PARTS,  # into which the panels are divided, each with lines of its own
    PART_PANELS,  # panels of a part
    QUERY,  # float32 [queries, dim], filled up to whole tiles
    PANELS,  # float32 [panels, dim, 16]
    ALLOWED,  # bool [items], or 0: all are
    BANNED_STARTS,  # int64 [queries + 1], or 0: none is
    BANNED,  # int64, the items of each query, ascending
    KEYS,  # int64 [parts, queries, capacity]
    COUNTS,  # int64 [parts, queries]
    LIMITS,  # float32 [parts, queries]: the k-th best score, from when there is one
) = range(FIRST, FIRST + 17)

_LOW = 0xFFFFFFFF


@njit(nogil=True)
def key_of(score, item):  # type: ignore[no-untyped-def]
    """An int64 that is larger for a larger score and, of equal scores, for the smaller item."""
    b = np.int64(bits(np.float32(score + np.float32(0))))  # −0 is 0
    if b < 0:
        b ^= 0x7FFFFFFF
    return (b << 32) | (_LOW - item)


@njit(nogil=True)
def select(keys, n, k):  # type: ignore[no-untyped-def]
    """Bring the k largest of n keys to the front; returns the smallest of them."""
    low, high = 0, n - 1
    while low < high:
        # The median of three as the pivot: keys that come sorted would take the first or last for ever.
        a, b, c = keys[low], keys[(low + high) >> 1], keys[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while keys[i] > pivot:
                i += 1
            while keys[j] < pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break
    return keys[k - 1]


@njit(nogil=True)
def _is_banned(a, query, item):  # type: ignore[no-untyped-def]
    """Whether an item is among those that the query must not find."""
    starts, items = field(a, BANNED_STARTS), field(a, BANNED)
    low, high = load_i64(starts + 8 * query), load_i64(starts + 8 * query + 8)
    while low < high:
        middle = (low + high) >> 1
        if load_i64(items + 8 * middle) < item:
            low = middle + 1
        else:
            high = middle
    return low < load_i64(starts + 8 * query + 8) and load_i64(items + 8 * low) == item


@njit(nogil=True)
def _keep(a, part, query, item, score):  # type: ignore[no-untyped-def]
    """Put an item on the query's line; a full line is cut to its best k, and the k-th is then the limit."""
    k, capacity = field(a, K), field(a, CAPACITY)
    line = part * field(a, LINES) + query
    count_at, keys_at = field(a, COUNTS) + 8 * line, field(a, KEYS) + 8 * line * capacity
    count = load_i64(count_at)
    store_i64(keys_at + 8 * count, key_of(score, item))
    count += 1
    if count == capacity:
        worst = select(carray(pointer(keys_at), capacity, np.int64), capacity, k) >> 32
        store_i32(field(a, LIMITS) + 4 * line, np.int32(worst if worst >= 0 else worst ^ 0x7FFFFFFF))
        count = k
    store_i64(count_at, count)


@njit(nogil=True)
def _take(a, part, query, item, scores, rows):  # type: ignore[no-untyped-def]
    """Keep what is above the limits in a tile of scores [rows, 16] of queries and items from these on."""
    allowed, banned = field(a, ALLOWED), field(a, BANNED_STARTS)
    limits = field(a, LIMITS) + 4 * part * field(a, LINES)
    for q in range(query, query + rows):
        found = lanes_above(load16(scores + LINE * (q - query)), load1(limits + 4 * q))
        while found != 0:
            i = lowest_bit(found)
            found &= found - np.int32(1)
            if item + i >= field(a, ITEMS):
                break
            if allowed != 0 and load_u8(allowed + item + i) == 0:
                continue
            if banned != 0 and _is_banned(a, q, item + i):
                continue
            _keep(a, part, q, item + i, load1(scores + LINE * (q - query) + 4 * i))


@njit(nogil=True)
def _many(a, part, first, last, begin, end, scores):  # type: ignore[no-untyped-def]
    """Compare queries first … last with the panels begin … end."""
    dim, row = field(a, DIM), 4 * field(a, DIM)
    limits = field(a, LIMITS) + 4 * part * field(a, LINES)
    for panel in range(begin, end):
        items = field(a, PANELS) + panel * dim * LINE
        if panel + 1 < end:
            for d in range(dim):
                prefetch(items + (dim + d) * LINE)
        for q in range(first, last, TILE):
            queries = field(a, QUERY) + q * row
            if last - q > 3:
                c0, c1, c2, c3, c4, c5 = tile6(queries, row, 4, items, LINE, dim, zeros16())
                if any_above(c0, c1, c2, limits + 4 * q) or any_above(c3, c4, c5, limits + 4 * q + 12):
                    store(scores, c0)
                    store(scores + LINE, c1)
                    store(scores + 2 * LINE, c2)
                    store(scores + 3 * LINE, c3)
                    store(scores + 4 * LINE, c4)
                    store(scores + 5 * LINE, c5)
                    _take(a, part, q, panel * LANES, scores, min(TILE, last - q))
            else:
                c0, c1, c2 = tile3(queries, row, 4, items, LINE, dim, zeros16())
                if any_above(c0, c1, c2, limits + 4 * q):
                    store(scores, c0)
                    store(scores + LINE, c1)
                    store(scores + 2 * LINE, c2)
                    _take(a, part, q, panel * LANES, scores, last - q)


@njit(nogil=True)
def _one(a, part, query, begin, end, scores):  # type: ignore[no-untyped-def]
    """Compare one query with the panels begin … end, four at a time: one alone would wait for each sum."""
    dim = field(a, DIM)
    size = dim * LINE
    limit = field(a, LIMITS) + 4 * (part * field(a, LINES) + query)
    for panel in range(begin, end, AHEAD):
        q, items = field(a, QUERY) + 4 * query * dim, field(a, PANELS) + panel * size
        c0, c1, c2, c3 = zeros16(), zeros16(), zeros16(), zeros16()
        for _ in range(dim):
            x = splat16(load1(q))
            c0 = multiply_add(x, load16(items), c0)
            c1 = multiply_add(x, load16(items + size), c1)
            c2 = multiply_add(x, load16(items + 2 * size), c2)
            c3 = multiply_add(x, load16(items + 3 * size), c3)
            q += 4
            items += LINE
        store(scores, c0)
        store(scores + LINE, c1)
        store(scores + 2 * LINE, c2)
        store(scores + 3 * LINE, c3)
        for i in range(min(AHEAD, end - panel)):
            if lanes_above(load16(scores + i * LINE), load1(limit)) != 0:
                _take(a, part, query, (panel + i) * LANES, scores + i * LINE, 1)


@njit(nogil=True)
def best_k(a):  # type: ignore[no-untyped-def]
    """The best k items of each query in each part of the items."""
    queries, parts, panels = field(a, QUERIES), field(a, PARTS), field(a, PART_PANELS)
    step = field(a, TASK_QUERIES)
    tasks = parts * ((queries + step - 1) // step)
    total = (field(a, ITEMS) + LANES - 1) // LANES
    tile = np.empty(TILE * LANES, np.float32)
    scores = address(tile)
    while True:
        task = next_task(a)
        if task >= tasks:
            return
        part, first = task % parts, task // parts * step
        last, begin, end = min(first + step, queries), part * panels, min((part + 1) * panels, total)
        if last - first == 1:
            _one(a, part, first, begin, end, scores)
        else:
            _many(a, part, first, last, begin, end, scores)


@njit(nogil=True)
def best_scores(a):  # type: ignore[no-untyped-def]
    """The best k of scores that are there: QUERY holds them, float32 [queries, items]; a task is a row."""
    items = field(a, ITEMS)
    tail = np.full(LANES, -np.inf, np.float32)
    while True:
        row = next_task(a)
        if row >= field(a, QUERIES):
            return
        scores, limit = field(a, QUERY) + 4 * row * items, field(a, LIMITS) + 4 * row
        for i in range(0, items, LANES):
            at = scores + 4 * i
            if items - i < LANES:
                for j in range(items - i):
                    tail[j] = load1(at + 4 * j)
                at = address(tail)
            if lanes_above(load16(at), load1(limit)) != 0:
                _take(a, 0, row, i, at, 1)
