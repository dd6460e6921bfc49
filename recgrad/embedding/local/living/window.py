"""How often keys without a row were seen: since the last round, and before they are admitted."""

from __future__ import annotations

import numpy as np
from numba import njit

from recgrad.embedding.local.initializer import mix
from recgrad.embedding.local.living.layout import (
    BUCKETS,
    COUNTERS,
    STEP,
    WAYS,
    WINDOW,
    WINDOW_BITS,
    WINDOW_COUNT,
    WINDOW_ENTRY,
    WINDOW_INDEX,
)
from recgrad.kernels import simd
from recgrad.kernels.simd import field, load_i64, store_i64


@njit(nogil=True)
def _slot(key: int, bits: int) -> int:
    return (mix(key ^ 0x5851F42D4C957F2D) >> (64 - bits)) & ((1 << bits) - 1)


@njit(nogil=True)
def note(line: int, key: int, count: int, last: int) -> None:
    """Count a key in the window. There must be room."""
    index, bits = field(line, WINDOW_INDEX), field(line, WINDOW_BITS)
    window, n = field(line, WINDOW), field(line, WINDOW_COUNT)
    mask = (1 << bits) - 1
    j = _slot(key, bits)
    while True:
        number = np.int64(simd.load_i32(index + 4 * j))
        if number == 0:
            break
        entry = window + WINDOW_ENTRY * (number - 1)
        if load_i64(entry) == key:
            store_i64(entry + 8, load_i64(entry + 8) + count)
            store_i64(entry + 16, max(load_i64(entry + 16), last))
            return
        j = (j + 1) & mask
    entry = window + WINDOW_ENTRY * n
    store_i64(entry, key)
    store_i64(entry + 8, count)
    store_i64(entry + 16, last)
    simd.store_i32(index + 4 * j, np.int32(n + 1))
    store_i64(line + 8 * WINDOW_COUNT, n + 1)


@njit(nogil=True)
def clear(line: int) -> None:
    """Forget the window."""
    n, bits, index = field(line, WINDOW_COUNT), field(line, WINDOW_BITS), field(line, WINDOW_INDEX)
    if n * 8 < (1 << bits):  # few keys: only their chains
        mask = (1 << bits) - 1
        for i in range(n):
            j = _slot(load_i64(field(line, WINDOW) + WINDOW_ENTRY * i), bits)
            while simd.load_i32(index + 4 * j) != 0:
                simd.store_i32(index + 4 * j, np.int32(0))
                j = (j + 1) & mask
    else:
        for j in range(0, 1 << bits, 2):
            store_i64(index + 4 * j, 0)
    store_i64(line + 8 * WINDOW_COUNT, 0)


@njit(nogil=True)
def reindex(line: int) -> None:
    """Find the places of all keys of the window in an index that is empty."""
    n = field(line, WINDOW_COUNT)
    index, bits = field(line, WINDOW_INDEX), field(line, WINDOW_BITS)
    mask = (1 << bits) - 1
    for i in range(n):
        j = _slot(load_i64(field(line, WINDOW) + WINDOW_ENTRY * i), bits)
        while simd.load_i32(index + 4 * j) != 0:
            j = (j + 1) & mask
        simd.store_i32(index + 4 * j, np.int32(i + 1))


@njit(nogil=True)
def counted(line: int, key: int, count: int, threshold: int) -> bool:
    """Add to a key's count; whether it has come to the threshold, and is then forgotten.

    The counters are buckets of WAYS keys. In a full one the smallest count (then key) makes room.
    """
    bucket = field(line, COUNTERS) + 16 * WAYS * (
        (((mix(key ^ 0x2545F4914F6CDD1D) >> 32) & 0xFFFFFFFF) * field(line, BUCKETS)) >> 32
    )
    chosen, least, least_key = -1, np.int64(1) << 62, np.int64(0)
    for way in range(WAYS):
        own, value = load_i64(bucket + 16 * way), load_i64(bucket + 16 * way + 8)
        if own == key + 1:
            value += count
            if value >= threshold:
                store_i64(bucket + 16 * way, 0)
                store_i64(bucket + 16 * way + 8, 0)
                return True
            store_i64(bucket + 16 * way + 8, value)
            return False
        if own == 0:
            value = -1
        if value < least or (value == least and own < least_key):
            chosen, least, least_key = way, value, own
    if count >= threshold:
        return True
    store_i64(bucket + 16 * chosen, key + 1)
    store_i64(bucket + 16 * chosen + 8, count)
    return False


@njit(nogil=True)
def note_misses(line: int, keys: int, rows: int, count: int) -> None:
    """Count the keys of ids without a row (−1) in the window."""
    step = field(line, STEP)
    for i in range(count):
        if load_i64(rows + 8 * i) < 0:
            note(line, load_i64(keys + 8 * i), 1, step)
