"""A round: keys that have waited are admitted, others make room for them.

What keys are worth, and who leaves, see candidates.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from recgrad.embedding.living import NEVER
from recgrad.embedding.local.initializer import mix, row_stream, unit
from recgrad.embedding.local.layout import CHANGED, KIND, STRIDE, WEIGHTS
from recgrad.embedding.local.layout import COUNT as TOUCHED
from recgrad.embedding.local.living.candidates import beaten, candidates, scores_of
from recgrad.embedding.local.living.index import MIN_MOVES, MOVES_PER_INSERT, add, move, prefetch_key, remove
from recgrad.embedding.local.living.layout import (
    ADMITTED,
    CAPACITY,
    DECAY,
    EVICTED,
    EXPIRED,
    FILTER,
    FILTER_VALUE,
    FREE,
    FREE_COUNT,
    GONE,
    GONE_COUNT,
    HIGH,
    KEY,
    LIVE,
    META,
    OVERFLOW,
    PENDING,
    POLICY,
    RESERVED,
    ROUND,
    SAFE,
    SLACK,
    STEP,
    THRESHOLD,
    TTL,
    TURNED_AWAY,
    WINDOW,
    WINDOW_COUNT,
    WINDOW_ENTRY,
    ZCH,
)
from recgrad.embedding.local.living.selection import by_score, lowest
from recgrad.embedding.local.living.window import clear, counted
from recgrad.embedding.local.rows import untouched
from recgrad.kernels import simd
from recgrad.kernels.parallel import FIRST, next_task
from recgrad.kernels.simd import field, load_f64, load_i32, load_i64, prefetch_to_write, store_i64

NONE, ABOVE, MEAN, CHANCE = range(4)
_NOBODY = -1
_AHEAD = 12  # keys between asking for memory and writing to it
TTL_PARTS = 16  # of its ttl may go by before a row that has expired is taken away

# Arguments of `round_tasks`.
LINES, LINE_COUNT = FIRST, FIRST + 1


@njit(nogil=True)
def _add_to(line: int, column: int, value: int) -> None:
    store_i64(line + 8 * column, field(line, column) + value)


@njit(nogil=True)
def give_row(line: int, key: int, count: int, last: int) -> Any:
    """A row for a key that has none. There must be room."""
    free = field(line, FREE_COUNT)
    if free > 0:
        row: Any = np.int64(load_i32(field(line, FREE) + 4 * (free - 1)))
        store_i64(line + 8 * FREE_COUNT, free - 1)
    else:
        row = field(line, HIGH)
        store_i64(line + 8 * HIGH, row + 1)
    meta = field(line, META) + 16 * row
    store_i64(meta, key)
    store_i64(meta + 8, (last << 32) | count)
    changed = field(field(line, 0), CHANGED)
    if changed != 0:
        simd.store_u8(changed + row, np.uint8(1))
    add(line, key, row)
    _add_to(line, LIVE, 1)
    return row


@njit(nogil=True)
def take_row(line: int, row: int) -> None:
    """Take a row from its key; it reads as never written, and its states begin anew with its next key."""
    meta = field(line, META) + 16 * row
    remove(line, load_i64(meta))
    if field(line, GONE) != 0:
        store_i64(field(line, GONE) + 8 * field(line, GONE_COUNT), load_i64(meta))
        _add_to(line, GONE_COUNT, 1)
    store_i64(meta, _NOBODY)
    if field(line, PENDING) != 0:
        store_i64(field(line, PENDING) + 8 * row, 0)
    table = field(line, 0)
    kind = field(table, KIND)
    weights = field(table, WEIGHTS) + row * field(table, STRIDE)
    if not untouched(weights, kind):
        if kind == simd.F32:
            simd.store_i32(weights, np.int32(0))
        else:
            simd.store_i16(weights, np.int16(0))
        _add_to(table, TOUCHED, -1)
    free = field(line, FREE_COUNT)
    simd.store_i32(field(line, FREE) + 4 * free, np.int32(row))
    store_i64(line + 8 * FREE_COUNT, free + 1)
    _add_to(line, LIVE, -1)


@njit(nogil=True)
def take_rows(line: int, rows: Any, keys: Any, chosen: Any) -> None:
    """Take the chosen of some rows from their keys; what each needs of memory is asked for ahead."""
    meta, table = field(line, META), field(line, 0)
    weights, stride = field(table, WEIGHTS), field(table, STRIDE)
    n = len(chosen)
    for i in range(n):
        if i + _AHEAD < n:
            row = rows[chosen[i + _AHEAD]]
            prefetch_key(line, keys[chosen[i + _AHEAD]])
            prefetch_to_write(meta + 16 * row)
            prefetch_to_write(weights + stride * row)
        take_row(line, rows[chosen[i]])


@njit(nogil=True)
def _ask_ahead(line: int, key: int) -> None:
    """Bring near what `give_row` will need for a key, some keys later."""
    prefetch_key(line, key)
    place = field(line, FREE_COUNT) - 1 - _AHEAD
    if place >= 0:
        prefetch_to_write(field(line, META) + 16 * np.int64(load_i32(field(line, FREE) + 4 * place)))


@njit(nogil=True)
def _expire(line: int) -> None:
    """Take the rows of keys that were not seen for longer than the ttl."""
    ttl, step = field(line, TTL), field(line, STEP)
    if ttl == 0 or (field(line, ZCH) == 0 and step % max(ttl // TTL_PARTS, 1) != 0):
        return
    meta, oldest = field(line, META), min(step - ttl, field(line, SAFE))
    for row in range(field(line, RESERVED), field(line, HIGH)):
        if load_i64(meta + 16 * row) >= 0 and (load_i64(meta + 16 * row + 8) >> 32) < oldest:
            take_row(line, row)
            _add_to(line, EXPIRED, 1)


@njit(nogil=True)
def _passes(line: int, key: int, count: int, mean: float) -> bool:
    """Whether the filter lets a key of the window through."""
    kind, value = field(line, FILTER), load_f64(field(line, FILTER_VALUE))
    if kind == ABOVE:
        return bool(count > value)
    if kind == MEAN:
        return bool(count > value * mean)
    if kind == CHANCE:
        u = unit(mix(row_stream(field(line, KEY) + field(line, STEP), key)))
        return bool(1.0 - (1.0 - value) ** count > u)
    return True


@njit(nogil=True)
def _refresh(line: int) -> float:
    """Give keys that have a row what the window has counted, if they pass; returns the mean count."""
    window, n, pending = field(line, WINDOW), field(line, WINDOW_COUNT), field(line, PENDING)
    total, number = 0, n
    for i in range(n):
        total += load_i64(window + WINDOW_ENTRY * i + 8)
    if pending == 0:
        return 0.0
    for row in range(field(line, RESERVED), field(line, HIGH)):
        count = load_i64(pending + 8 * row) & 0xFFFFFFFF
        if count != 0:
            total, number = total + count, number + 1
    mean = total / max(number, 1)
    meta = field(line, META)
    for row in range(field(line, RESERVED), field(line, HIGH)):
        mark = load_i64(pending + 8 * row)
        if mark != 0:
            count, last = mark & 0xFFFFFFFF, mark >> 32
            if _passes(line, load_i64(meta + 16 * row), count, mean):
                old = load_i64(meta + 16 * row + 8) & 0xFFFFFFFF
                store_i64(meta + 16 * row + 8, (last << 32) | (old + count))
            store_i64(pending + 8 * row, 0)
    return mean


@njit(nogil=True)
def _newcomers(line: int, mean: float) -> Any:
    """Keys, counts and last passes of the window's keys that pass the filter."""
    window, n = field(line, WINDOW), field(line, WINDOW_COUNT)
    keys, counts, lasts = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    m = 0
    for i in range(n):
        entry = window + WINDOW_ENTRY * i
        key, count = load_i64(entry), load_i64(entry + 8)
        if _passes(line, key, count, mean):
            keys[m], counts[m], lasts[m] = key, count, load_i64(entry + 16)
            m += 1
    _add_to(line, TURNED_AWAY, n - m)
    return keys[:m], counts[:m], lasts[:m]


@njit(nogil=True)
def _window_round(line: int) -> None:
    """zch: the best of keys with a row and of the window's keys have rows afterwards; ties stay."""
    keys, counts, lasts = _newcomers(line, _refresh(line))
    _expire(line)
    policy, now, decay = field(line, POLICY), field(line, STEP), load_f64(field(line, DECAY))
    scores = scores_of(policy, counts, lasts, now, decay)
    room = field(line, CAPACITY) - field(line, LIVE)
    admitted = min(room, len(keys))
    if len(keys) > room:
        rows, own_keys, own = candidates(line, now + 1, min(len(keys) - room, field(line, LIVE)))
        worst = lowest(own, own_keys, min(len(keys) - room, len(rows)))
        losers = beaten(scores, own[worst], room)
        if losers < len(worst):
            worst = lowest(own, own_keys, losers)
        take_rows(line, rows, own_keys, worst)
        _add_to(line, EVICTED, losers)
        admitted += losers
    order = np.arange(len(keys))
    if 0 < admitted < len(keys):  # the best first: by score, then count, then the smaller key
        order = by_score(-counts, keys)
        order = order[np.argsort(-scores[order], kind="mergesort")]
    for i in range(admitted):
        if i + _AHEAD < admitted:
            _ask_ahead(line, keys[order[i + _AHEAD]])
        j = order[i]
        give_row(line, keys[j], counts[j], lasts[j])
    _add_to(line, ADMITTED, admitted)
    _add_to(line, TURNED_AWAY, len(keys) - admitted)
    clear(line)
    move(line, MIN_MOVES + MOVES_PER_INSERT * admitted)


@njit(nogil=True)
def _make_room(line: int, wanted: int) -> int:
    """dynamicemb: evict until that many keys have room, and some more; returns for how many there is room."""
    room = field(line, CAPACITY) - field(line, LIVE)
    if wanted <= room or field(line, POLICY) == NEVER:
        return min(wanted, room)
    gone = wanted - room + field(line, SLACK)
    rows, keys, scores = candidates(line, field(line, SAFE), gone)
    gone = min(gone, len(rows))
    chosen = lowest(scores, keys, gone)
    take_rows(line, rows, keys, chosen)
    _add_to(line, EVICTED, gone)
    return min(wanted, room + gone)


@njit(nogil=True)
def _batch_round(line: int) -> None:
    """dynamicemb: the batch's new keys get rows, as far as they were seen often enough."""
    _expire(line)
    window, n, threshold = field(line, WINDOW), field(line, WINDOW_COUNT), field(line, THRESHOLD)
    wanted = np.empty(n, np.int64)
    m = 0
    for i in range(n):
        entry = window + WINDOW_ENTRY * i
        if threshold == 0 or counted(line, load_i64(entry), load_i64(entry + 8), threshold):
            wanted[m] = entry
            m += 1
    _add_to(line, TURNED_AWAY, n - m)
    room = _make_room(line, m)
    for i in range(room):
        if i + _AHEAD < room:
            _ask_ahead(line, load_i64(wanted[i + _AHEAD]))
        give_row(line, load_i64(wanted[i]), load_i64(wanted[i] + 8), load_i64(wanted[i] + 16))
    _add_to(line, ADMITTED, room)
    if field(line, POLICY) == NEVER:
        _add_to(line, TURNED_AWAY, m - room)
    else:
        store_i64(line + 8 * OVERFLOW, m - room)
    clear(line)
    move(line, MIN_MOVES + MOVES_PER_INSERT * room)


@njit(nogil=True)
def round_tasks(a: int) -> None:
    """The rounds of all tables that are due, a task each."""
    while True:
        task = next_task(a)
        if task >= field(a, LINE_COUNT):
            return
        line = field(field(a, LINES), task)
        if field(line, ROUND) != 0:
            if field(line, ZCH) != 0:
                _window_round(line)
            else:
                _batch_round(line)
