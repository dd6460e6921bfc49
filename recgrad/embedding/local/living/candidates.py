"""Who may leave: what keys are worth, and those among them that are worth least.

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

from recgrad.embedding.living import COUNT, DISTANCE
from recgrad.embedding.local.living.layout import (
    DECAY,
    HIGH,
    LIVE,
    META,
    POLICY,
    RESERVED,
    STEP,
)
from recgrad.embedding.local.living.selection import kth
from recgrad.kernels.simd import field, load_f64, load_i64

_KNOWN_AGES = 1024
_SAMPLED_FROM = 1024  # keys
_SAMPLE = 4096
_A_LITTLE = 1.0 + 1e-12


@njit(nogil=True)
def score(policy: int, count: int, last: int, now: int, decay: float) -> Any:
    """What a key is worth, for LAST and COUNT."""
    if policy == COUNT:
        return (count << 31) | last
    return last


@njit(nogil=True)
def scores_of(policy, counts, lasts, now, decay):  # type: ignore[no-untyped-def]
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


def best_first(policy: int, decay: float, marks: Any, keys: Any, now: int) -> Any:
    """The order of keys by what they are worth, the best first; marks as rows have them."""
    counts, lasts = marks & 0xFFFFFFFF, marks >> 32
    scores = lasts.astype(np.float64)
    if policy == DISTANCE:
        scores = counts / (now - lasts + 1.0) ** decay
    return np.lexsort((keys, lasts, counts) if policy == COUNT else (keys, scores))[::-1]


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
def incumbents(line: int, before: int) -> Any:
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
    scores = scores_of(
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
    return kth(found[:n], place)


@njit(nogil=True)
def _at_most(line: int, before: int, limit: float, powers: Any) -> Any:
    """Rows of keys that are worth at most a limit, and perhaps a few that are worth a little more.

    What a key of some age may have been counted is looked up, because there is no time for a division a key.
    """
    rows = np.empty(field(line, LIVE), np.int64)
    meta, now, policy = field(line, META), field(line, STEP), field(line, POLICY)
    exponent = powers[_KNOWN_AGES] if policy == DISTANCE else 0.0
    most = np.empty(_KNOWN_AGES, np.float64)
    for age in range(_KNOWN_AGES):
        most[age] = limit * (powers[age] * _A_LITTLE if policy == DISTANCE else 1.0)
    n = 0
    for row in range(field(line, RESERVED), field(line, HIGH)):
        mark = load_i64(meta + 16 * row + 8)
        count, last = mark & 0xFFFFFFFF, mark >> 32
        value = count if policy in (COUNT, DISTANCE) else last
        age = now - last
        bound = most[age] if age < _KNOWN_AGES else limit * (age + 1.0) ** exponent * _A_LITTLE
        if value <= bound and last < before and load_i64(meta + 16 * row) >= 0:
            rows[n] = row
            n += 1
    return rows[:n]


@njit(nogil=True)
def candidates(line: int, before: int, k: int) -> Any:
    """As `incumbents`, but where k keys are few perhaps only some, among which the k lowest are.

    Looking at all keys is most of what a round costs: a limit that is estimated from a sample leaves few of
    them, and where it leaves too few, all are taken.
    """
    live = field(line, LIVE)
    if live < _SAMPLED_FROM or k > live // 8:
        return incumbents(line, before)
    decay = load_f64(field(line, DECAY))
    powers = np.empty(_KNOWN_AGES + 1, np.float64)
    for age in range(_KNOWN_AGES):
        powers[age] = (age + 1.0) ** decay
    powers[_KNOWN_AGES] = decay
    limit = _sample_limit(line, before, k, powers)
    if limit < 0:
        return incumbents(line, before)
    now, policy = field(line, STEP), field(line, POLICY)
    rows = _at_most(line, before, limit, powers)
    n, meta, enough = len(rows), field(line, META), 0
    keys, counts, lasts = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        mark = load_i64(meta + 16 * rows[i] + 8)
        keys[i], counts[i], lasts[i] = load_i64(meta + 16 * rows[i]), mark & 0xFFFFFFFF, mark >> 32
        if _worth(policy, counts[i], lasts[i], now, powers) <= limit:
            enough += 1
    if enough < k:
        return incumbents(line, before)
    return rows, keys, scores_of(policy, counts, lasts, now, decay)


@njit(nogil=True)
def beaten(new: Any, old: Any, room: int) -> int:
    """How many of the worst old keys lose to new ones, of which the best `room` need nobody's place.

    Args:
        new, old: scores.
        room: rows that nobody has.
    """
    n = min(len(old), len(new) - room)
    if n == 0 or new.min() > old.max():
        return n
    new, old = np.sort(new), np.sort(old)
    for i in range(n):
        if new[len(new) - 1 - room - i] <= old[i]:
            return i
    return n
