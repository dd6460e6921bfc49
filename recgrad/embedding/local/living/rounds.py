"""A round: keys that have waited are admitted, others make room for them.

Scores, of which the lowest leave first; ties by key, the smaller first, so that nothing depends on where
rows lie:

    LAST       the last pass in which the key was seen
    COUNT      how often it was seen, then the last pass
    DISTANCE   count / (now − last + 1)^decay
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from recgrad.embedding.living import COUNT, DISTANCE, NEVER
from recgrad.embedding.local.initializer import mix, row_stream, unit
from recgrad.embedding.local.layout import CHANGED, KIND, STRIDE, WEIGHTS
from recgrad.embedding.local.layout import COUNT as TOUCHED
from recgrad.embedding.local.living.index import MIN_MOVES, MOVES_PER_INSERT, add, move, remove
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
from recgrad.kernels.simd import field, load_f64, load_i32, load_i64, store_i64

NONE, ABOVE, MEAN, CHANCE = range(4)
_NOBODY = -1
_KNOWN_AGES = 1024
_SAMPLED_FROM = 1024  # keys
_SAMPLE = 4096
TTL_PARTS = 16  # of its ttl may go by before a row that has expired is taken away

# Arguments of `round_tasks`.
LINES, LINE_COUNT = FIRST, FIRST + 1


@njit(nogil=True)
def _add_to(line: int, column: int, value: int) -> None:
    store_i64(line + 8 * column, field(line, column) + value)


@njit(nogil=True)
def score(policy: int, count: int, last: int, now: int, decay: float) -> Any:
    """What a key is worth, for LAST and COUNT."""
    if policy == COUNT:
        return (count << 31) | last
    return last


@njit(nogil=True)
def _scores(policy, counts, lasts, now, decay):  # type: ignore[no-untyped-def]
    """What keys are worth, as int64 in the same order."""
    n = len(counts)
    if policy == DISTANCE:
        values = np.empty(n, np.float64)
        known = np.empty(_KNOWN_AGES, np.float64)  # powers take long, and most ages occur often
        for age in range(_KNOWN_AGES):
            known[age] = (age + 1.0) ** decay
        for i in range(n):
            age = now - lasts[i]
            values[i] = counts[i] / (known[age] if age < _KNOWN_AGES else (age + 1.0) ** decay)
        return values.view(np.int64)  # positive floats are ordered as their bits are
    scores = np.empty(n, np.int64)
    for i in range(n):
        scores[i] = score(policy, counts[i], lasts[i], now, decay)
    return scores


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
def _incumbents(line: int, before: int) -> Any:
    """Rows, keys and scores of the keys that were last seen before a pass."""
    most = field(line, LIVE)
    rows, keys = np.empty(most, np.int64), np.empty(most, np.int64)
    counts, lasts = np.empty(most, np.int64), np.empty(most, np.int64)
    n = 0
    meta = field(line, META)
    for row in range(field(line, RESERVED), field(line, HIGH)):
        key, mark = load_i64(meta + 16 * row), load_i64(meta + 16 * row + 8)
        if key >= 0 and (mark >> 32) < before:
            rows[n], keys[n], counts[n], lasts[n] = row, key, mark & 0xFFFFFFFF, mark >> 32
            n += 1
    scores = _scores(
        field(line, POLICY), counts[:n], lasts[:n], field(line, STEP), load_f64(field(line, DECAY))
    )
    return rows[:n], keys[:n], scores


@njit(nogil=True)
def _sample_limit(line: int, before: int, k: int, powers: Any) -> Any:
    """A score that about 2k keys are at most worth, from every few rows; −1 where that cannot be told."""
    first, high, live = field(line, RESERVED), field(line, HIGH), field(line, LIVE)
    stride = max((high - first) // min(_SAMPLE, live // 4), 1)
    found = np.empty((high - first) // stride + 1, np.float64)
    n = 0
    meta, now, policy = field(line, META), field(line, STEP), field(line, POLICY)
    for row in range(first, high, stride):
        mark = load_i64(meta + 16 * row + 8)
        if load_i64(meta + 16 * row) >= 0 and (mark >> 32) < before:
            found[n] = _worth(policy, mark & 0xFFFFFFFF, mark >> 32, now, powers)
            n += 1
    place = 2 * k * n // live + 24
    if place >= n // 2:
        return -1.0
    return np.sort(found[:n])[place]


@njit(nogil=True)
def _worth(policy: int, count: int, last: int, now: int, powers: Any) -> Any:
    """A key's score as a float, in the same order up to rounding; powers are those of ages."""
    if policy == DISTANCE:
        age = now - last
        return count / (powers[age] if age < _KNOWN_AGES else (age + 1.0) ** powers[_KNOWN_AGES])
    if policy == COUNT:
        return float(count)
    return float(last)


@njit(nogil=True)
def _candidates(line: int, before: int, k: int) -> Any:
    """As `_incumbents`, but where k keys are few perhaps only some, among which the k lowest are.

    Looking at all keys is most of what a round costs: a limit that is estimated from a sample leaves few of
    them, and where it leaves too few, all are taken.
    """
    live = field(line, LIVE)
    if live < _SAMPLED_FROM or k > live // 8:
        return _incumbents(line, before)
    decay = load_f64(field(line, DECAY))
    powers = np.empty(_KNOWN_AGES + 1, np.float64)
    for age in range(_KNOWN_AGES):
        powers[age] = (age + 1.0) ** decay
    powers[_KNOWN_AGES] = decay
    limit = _sample_limit(line, before, k, powers)
    rows, keys = np.empty(live, np.int64), np.empty(live, np.int64)
    counts, lasts = np.empty(live, np.int64), np.empty(live, np.int64)
    n = 0
    meta, now, policy = field(line, META), field(line, STEP), field(line, POLICY)
    if limit >= 0:
        for row in range(field(line, RESERVED), field(line, HIGH)):
            key, mark = load_i64(meta + 16 * row), load_i64(meta + 16 * row + 8)
            count, last = mark & 0xFFFFFFFF, mark >> 32
            if key >= 0 and last < before and _worth(policy, count, last, now, powers) <= limit:
                rows[n], keys[n], counts[n], lasts[n] = row, key, count, last
                n += 1
    if n < k:
        return _incumbents(line, before)
    return rows[:n], keys[:n], _scores(policy, counts[:n], lasts[:n], now, decay)


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
    scores = _scores(policy, counts, lasts, now, decay)
    # The best first: by score, then count, then the smaller key.
    order = by_score(-counts, keys)
    order = order[np.argsort(-scores[order], kind="mergesort")]
    room = field(line, CAPACITY) - field(line, LIVE)
    admitted = min(room, len(keys))
    if len(keys) > room:
        rows, own_keys, own = _candidates(line, now + 1, min(len(keys) - room, field(line, LIVE)))
        worst = lowest(own, own_keys, min(len(keys) - room, len(rows)))
        worst = worst[by_score(own[worst], own_keys[worst])]
        for i in range(len(worst)):
            if scores[order[room + i]] <= own[worst[i]]:
                break
            take_row(line, rows[worst[i]])
            _add_to(line, EVICTED, 1)
            admitted += 1
    for i in range(admitted):
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
    rows, keys, scores = _candidates(line, field(line, SAFE), gone)
    gone = min(gone, len(rows))
    chosen = lowest(scores, keys, gone)
    for i in range(len(chosen)):
        take_row(line, rows[chosen[i]])
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
