"""The index of a living table: from key to row.

Open addressing with linear probing over any number of entries; a key's home is its mixed bits times that
number, so the index is as large as needed and no larger. An entry that is taken out leaves no mark: those
behind it move up. Growing needs no pause (growth.py): a larger index is put beside the old one, new keys go
into the new one, and every batch moves some of the old entries over; what is taken out meanwhile is marked in
the old one.
"""

from __future__ import annotations

from numba import njit

from recgrad.embedding.local.initializer import mix
from recgrad.embedding.local.living.layout import (
    ENTRIES,
    ENTRY,
    MOVED,
    OLD_ENTRIES,
    OLD_SIZE,
    SIZE,
)
from recgrad.kernels.simd import field, load_i64, prefetch, prefetch_to_write, store_i64

MAX_LOAD = 0.6
MOVES_PER_INSERT = 2  # at least 1 / MAX_LOAD, so that all are moved before the next growth
MIN_MOVES = 4096
_AHEAD = 16  # entries between asking for a place in the new index and writing to it
_GONE = -1  # in the old index: taken out


@njit(nogil=True)
def home(key: int, size: int) -> int:
    """Where the search for a key begins."""
    return (((mix(key) >> 32) & 0xFFFFFFFF) * size) >> 32


@njit(nogil=True)
def place_from(entries: int, size: int, key: int, j: int) -> int:
    """The entry of a key in one index, or −1; j is its home."""
    while True:
        row = load_i64(entries + ENTRY * j + 8)
        if row == 0:
            return -1
        if row > 0 and load_i64(entries + ENTRY * j) == key:
            return j
        j += 1
        if j == size:
            j = 0


@njit(nogil=True)
def place(entries: int, size: int, key: int) -> int:
    """The entry of a key in one index, or −1."""
    return place_from(entries, size, key, home(key, size))


@njit(nogil=True)
def put(entries: int, size: int, key: int, row: int) -> None:
    """Add a key that the index does not have. There must be room."""
    j = home(key, size)
    while load_i64(entries + ENTRY * j + 8) != 0:
        j += 1
        if j == size:
            j = 0
    store_i64(entries + ENTRY * j, key)
    store_i64(entries + ENTRY * j + 8, row + 1)


@njit(nogil=True)
def prefetch_key(line: int, key: int) -> None:
    """Bring the entry of a key near."""
    prefetch(field(line, ENTRIES) + ENTRY * home(key, field(line, SIZE)))


@njit(nogil=True)
def home_near(entries: int, size: int, key: int) -> int:
    """The home of a key, for `find_from` some keys later; it is brought near, and the entries behind it."""
    j = home(key, size)
    prefetch(entries + ENTRY * j)
    prefetch(entries + ENTRY * (j + 2))  # a search goes on there, for every other home in the next line
    return j


@njit(nogil=True)
def find_from(line: int, entries: int, size: int, key: int, j: int) -> int:
    """The row of a key, or −1; its home is that in the newest index, whose entries and size these are."""
    j = place_from(entries, size, key, j)
    if j < 0:
        entries = field(line, OLD_ENTRIES)
        if entries == 0:
            return -1
        j = place(entries, field(line, OLD_SIZE), key)
        if j < 0:
            return -1
    return load_i64(entries + ENTRY * j + 8) - 1


@njit(nogil=True)
def find(line: int, key: int) -> int:
    """The row of a key, or −1."""
    entries, size = field(line, ENTRIES), field(line, SIZE)
    return find_from(line, entries, size, key, home(key, size))


@njit(nogil=True)
def add(line: int, key: int, row: int) -> None:
    """Give a key that has none a row."""
    put(field(line, ENTRIES), field(line, SIZE), key, row)


@njit(nogil=True)
def close_gap(entries: int, size: int, gap: int) -> None:
    """Take an entry out; those behind it that were pushed past it move up."""
    j = gap
    while True:
        j += 1
        if j == size:
            j = 0
        row = load_i64(entries + ENTRY * j + 8)
        if row == 0:
            break
        key = load_i64(entries + ENTRY * j)
        h = home(key, size)
        stays = gap < h <= j if gap <= j else (h > gap or h <= j)
        if not stays:
            store_i64(entries + ENTRY * gap, key)
            store_i64(entries + ENTRY * gap + 8, row)
            gap = j
    store_i64(entries + ENTRY * gap + 8, 0)


@njit(nogil=True)
def remove(line: int, key: int) -> None:
    """Take a key out."""
    entries, size = field(line, ENTRIES), field(line, SIZE)
    j = place(entries, size, key)
    if j >= 0:
        close_gap(entries, size, j)
    old = field(line, OLD_ENTRIES)
    if old != 0:
        j = place(old, field(line, OLD_SIZE), key)
        if j >= 0:
            store_i64(old + ENTRY * j + 8, _GONE)


@njit(nogil=True)
def move(line: int, count: int) -> None:
    """Move up to `count` entries of the old index to the new one."""
    old = field(line, OLD_ENTRIES)
    if old == 0:
        return
    last = min(field(line, MOVED) + count, field(line, OLD_SIZE))
    entries, size = field(line, ENTRIES), field(line, SIZE)
    for j in range(field(line, MOVED), last):
        if j + _AHEAD < last and load_i64(old + ENTRY * (j + _AHEAD) + 8) > 0:
            prefetch_to_write(entries + ENTRY * home(load_i64(old + ENTRY * (j + _AHEAD)), size))
        row = load_i64(old + ENTRY * j + 8)
        if row > 0:
            put(entries, size, load_i64(old + ENTRY * j), row - 1)
    store_i64(line + 8 * MOVED, last)
