"""Small kernels for what happens beside training: import, growth."""

from __future__ import annotations

from numba import njit

from recgrad.embedding.living import FALLBACK
from recgrad.embedding.local.living.index import find, move
from recgrad.embedding.local.living.layout import CAPACITY, LIVE, OLD_SIZE, STEP
from recgrad.embedding.local.living.rounds import give_row
from recgrad.embedding.local.living.window import counted, reindex
from recgrad.kernels.parallel import FIRST
from recgrad.kernels.simd import field, store_i64

_NEVER = 1 << 62


@njit(nogil=True)
def settle_task(a: int) -> None:
    """Finish the move to a larger index. Arguments: the table's line."""
    line = field(a, FIRST)
    move(line, field(line, OLD_SIZE))


@njit(nogil=True)
def reindex_task(a: int) -> None:
    """Find the places of the window's keys in an empty index. Arguments: the table's line."""
    reindex(field(a, FIRST))


@njit(nogil=True)
def place_task(a: int) -> None:
    """Rows of keys, given out where missing; −1 without room. Arguments: the line, keys, rows, count."""
    line, keys, rows = field(a, FIRST), field(a, FIRST + 1), field(a, FIRST + 2)
    for i in range(field(a, FIRST + 3)):
        key = field(keys, i)
        row = find(line, key)
        if row < 0 and key != FALLBACK and field(line, LIVE) < field(line, CAPACITY):
            row = give_row(line, key, 1, field(line, STEP))
        store_i64(rows + 8 * i, row)


@njit(nogil=True)
def counters_task(a: int) -> None:
    """Fill the counters. Arguments: the line, pairs of key + 1 and count, number of pairs."""
    line, held = field(a, FIRST), field(a, FIRST + 1)
    for i in range(field(a, FIRST + 2)):
        counted(line, field(held, 2 * i) - 1, field(held, 2 * i + 1), _NEVER)
