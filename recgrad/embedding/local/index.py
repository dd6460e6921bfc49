"""The index of a compact table: from row number to slot.

Open addressing with linear probing; an entry is one int64, slot · 2³² + row + 1, and 0 is
empty. Slots are handed out in order and never move, so growing needs no pause: a doubled
index is put beside the old one, new rows go to the new one, and every batch moves some of the old
entries over. A row that is in both has the same slot in both.

    INDEX      2^BITS entries:      · [slot 2|row 7] ·  · [slot 0|row 9][slot 3|row 4] ·  ·
    OLD_INDEX  2^OLD_BITS entries:  [slot 0|row 9] · [slot 1|row 5] ·
               ╰── MOVED: these are in INDEX too ──╯

`find` asks the new index, then the old one. Lookups of other threads read while `find_or_add` of the one
thread that plans a table writes: never at the same time, because forward passes and updates take turns.
"""

from __future__ import annotations

from numba import njit

from recgrad.embedding.local.layout import BITS, COUNT, INDEX, MOVED, OLD_BITS, OLD_INDEX
from recgrad.kernels.simd import field, load_i64, prefetch, store_i64

MAX_ROWS = (1 << 32) - 2
ENTRY_BYTES = 8
MAX_LOAD = 0.7
MOVES_PER_INSERT = 3  # two would do: the old index is empty before the new one is full
MIN_MOVES = 16384  # a batch, so that an outgrown index of usual size is given back after few batches
GOLDEN = -7046029254386353131  # 2⁶⁴/φ as int64: multiplied by it, neighbouring rows lie far apart


@njit(nogil=True)
def _home(row: int, bits: int) -> int:
    return ((row * GOLDEN) >> (64 - bits)) & ((1 << bits) - 1)


@njit(nogil=True)
def _probe(index: int, bits: int, row: int) -> int:
    """The slot of a row in one index, or −1."""
    mask = (1 << bits) - 1
    j = _home(row, bits)
    entry = load_i64(index + j * ENTRY_BYTES)
    while entry != 0:
        if (entry & 0xFFFFFFFF) == row + 1:
            return entry >> 32
        j = (j + 1) & mask
        entry = load_i64(index + j * ENTRY_BYTES)
    return -1


@njit(nogil=True)
def put(index: int, bits: int, row: int, slot: int) -> None:
    """Add a row that the index does not have; moving may offer one twice."""
    mask = (1 << bits) - 1
    j = _home(row, bits)
    entry = load_i64(index + j * ENTRY_BYTES)
    while entry != 0:
        if (entry & 0xFFFFFFFF) == row + 1:
            return
        j = (j + 1) & mask
        entry = load_i64(index + j * ENTRY_BYTES)
    store_i64(index + j * ENTRY_BYTES, (slot << 32) | (row + 1))


@njit(nogil=True)
def prefetch_entry(table: int, row: int) -> None:
    """Bring the index entry of a row near."""
    prefetch(field(table, INDEX) + _home(row, field(table, BITS)) * ENTRY_BYTES)


@njit(nogil=True)
def find(table: int, row: int) -> int:
    """The slot of a row, or −1 if it has none."""
    slot = _probe(field(table, INDEX), field(table, BITS), row)
    if slot < 0 and field(table, OLD_INDEX) != 0:
        slot = _probe(field(table, OLD_INDEX), field(table, OLD_BITS), row)
    return slot


@njit(nogil=True)
def find_or_add(table: int, row: int) -> int:
    """The slot of a row; the next free one if it had none. There must be room."""
    slot = find(table, row)
    if slot < 0:
        slot = field(table, COUNT)
        store_i64(table + 8 * COUNT, slot + 1)
        put(field(table, INDEX), field(table, BITS), row, slot)
    return slot


@njit(nogil=True)
def move(table: int, entries: int) -> None:
    """Move up to `entries` places of the old index to the new one."""
    if field(table, OLD_INDEX) == 0:
        return
    last = min(field(table, MOVED) + entries, 1 << field(table, OLD_BITS))
    for j in range(field(table, MOVED), last):
        entry = load_i64(field(table, OLD_INDEX) + j * ENTRY_BYTES)
        if entry != 0:
            put(field(table, INDEX), field(table, BITS), (entry & 0xFFFFFFFF) - 1, entry >> 32)
    store_i64(table + 8 * MOVED, last)
