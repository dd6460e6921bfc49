"""Small kernels for what happens beside training: offsets, import, export, growth."""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from recgrad.embedding.local.catch_up import read_moved
from recgrad.embedding.local.index import find_or_add, move
from recgrad.embedding.local.layout import OLD_BITS, STRIDE, WEIGHTS
from recgrad.embedding.local.rows import generate
from recgrad.kernels import simd
from recgrad.kernels.parallel import FIRST
from recgrad.kernels.simd import field, store_i64


@njit(nogil=True)
def offsets_task(a: int) -> None:
    """Where each bag begins. Arguments: int32 lengths, count, int64 offsets (one more), negative."""
    n = field(a, FIRST + 1)
    lengths = carray(simd.pointer(field(a, FIRST)), n, np.int32)
    offsets = carray(simd.pointer(field(a, FIRST + 2)), n + 1, np.int64)
    total = np.int64(0)
    sign = np.int32(0)
    offsets[0] = 0
    for i in range(n):
        sign |= lengths[i]
        total += lengths[i]
        offsets[i + 1] = total
    store_i64(field(a, FIRST + 3), sign < 0)


@njit(nogil=True)
def settle_task(a: int) -> None:
    """Finish the move to a doubled index. Arguments: the table's line."""
    table = field(a, FIRST)
    move(table, 1 << field(table, OLD_BITS))


@njit(nogil=True)
def assign_task(a: int) -> None:
    """Slots of rows, handed out where missing. Arguments: the table's line, rows, slots, count."""
    table, rows, slots = field(a, FIRST), field(a, FIRST + 1), field(a, FIRST + 2)
    for i in range(field(a, FIRST + 3)):
        store_i64(slots + 8 * i, find_or_add(table, field(rows, i)))


@njit(nogil=True)
def catch_up_task(a: int) -> None:
    """Bring weights of rows up to date. Arguments: the table's line, slots, count, weights, dim."""
    table, slots, rows, dim = field(a, FIRST), field(a, FIRST + 1), field(a, FIRST + 3), field(a, FIRST + 4)
    for i in range(field(a, FIRST + 2)):
        stored = field(table, WEIGHTS) + field(slots, i) * field(table, STRIDE)
        row = rows + 4 * i * dim
        read_moved(table, stored, row, row, dim)


@njit(nogil=True)
def initial_task(a: int) -> None:
    """Values of untouched rows. Arguments: the table's line, its parameters, rows, count, out, dim."""
    table, parameters, rows = field(a, FIRST), field(a, FIRST + 1), field(a, FIRST + 2)
    out, dim = field(a, FIRST + 4), field(a, FIRST + 5)
    for i in range(field(a, FIRST + 3)):
        generate(table, parameters, field(rows, i), out + 4 * i * dim, dim)
