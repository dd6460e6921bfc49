"""Small kernels for what happens beside training: offsets, import, export, growth."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from recgrad.embedding.local.catch_up import read_moved
from recgrad.embedding.local.index import find_or_add, move
from recgrad.embedding.local.layout import OLD_BITS, STRIDE, WEIGHTS
from recgrad.embedding.local.rows import generate
from recgrad.kernels import simd
from recgrad.kernels.parallel import FIRST


@njit(nogil=True)
def offsets_task(arguments: Any) -> None:
    """Where each bag begins. Arguments: int32 lengths, count, int64 offsets (one more), negative."""
    a = carray(arguments, FIRST + 4)
    n = a[FIRST + 1]
    lengths = carray(simd.pointer(a[FIRST]), n, np.int32)
    offsets = carray(simd.pointer(a[FIRST + 2]), n + 1, np.int64)
    negative = carray(simd.pointer(a[FIRST + 3]), 1, np.int64)
    total = np.int64(0)
    sign = np.int32(0)
    offsets[0] = 0
    for i in range(n):
        sign |= lengths[i]
        total += lengths[i]
        offsets[i + 1] = total
    negative[0] = sign < 0


@njit(nogil=True)
def settle_task(arguments: Any) -> None:
    """Finish the move to a doubled index. Arguments: the table's line."""
    a = carray(arguments, FIRST + 1)
    table = a[FIRST]
    move(table, 1 << simd.field(table, OLD_BITS))


@njit(nogil=True)
def assign_task(arguments: Any) -> None:
    """Slots of rows, handed out where missing. Arguments: the table's line, rows, slots, count."""
    a = carray(arguments, FIRST + 4)
    table = a[FIRST]
    rows = carray(simd.pointer(a[FIRST + 1]), a[FIRST + 3], np.int64)
    slots = carray(simd.pointer(a[FIRST + 2]), a[FIRST + 3], np.int64)
    for i in range(a[FIRST + 3]):
        slots[i] = find_or_add(table, rows[i])


@njit(nogil=True)
def catch_up_task(arguments: Any) -> None:
    """Bring weights of rows up to date. Arguments: the table's line, slots, count, weights, dim."""
    a = carray(arguments, FIRST + 5)
    table, rows, dim = a[FIRST], a[FIRST + 3], a[FIRST + 4]
    slots = carray(simd.pointer(a[FIRST + 1]), a[FIRST + 2], np.int64)
    for i in range(a[FIRST + 2]):
        stored = simd.field(table, WEIGHTS) + slots[i] * simd.field(table, STRIDE)
        row = rows + 4 * i * dim
        read_moved(table, stored, row, row, dim)


@njit(nogil=True)
def initial_task(arguments: Any) -> None:
    """Values of untouched rows. Arguments: the table's line, its parameters, rows, count, out, dim."""
    a = carray(arguments, FIRST + 6)
    table = a[FIRST]
    rows = carray(simd.pointer(a[FIRST + 2]), a[FIRST + 3], np.int64)
    for i in range(a[FIRST + 3]):
        generate(table, a[FIRST + 1], rows[i], a[FIRST + 4] + 4 * i * a[FIRST + 5], a[FIRST + 5])
