"""The forward kernel: looks up and pools the bags of all features of one dim in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from recgrad.embedding.local import simd
from recgrad.embedding.local.index import find, prefetch_entry
from recgrad.embedding.local.layout import (
    ID_WEIGHTS,
    IDS,
    INDEX,
    KIND,
    LOOKUP_COLUMNS,
    MEAN,
    OFFSETS,
    ROWS,
    STRIDE,
    TABLE,
    TABLE_COLUMNS,
    VECTOR_STRIDE,
    VECTORS,
    WEIGHTS,
)
from recgrad.embedding.local.parallel import FIRST, TASK
from recgrad.embedding.local.rows import generate, load1, load4, load8, load16, untouched

RING = 512  # row addresses that are known ahead; a longer bag is summed in pieces
AHEAD = 32  # ids between finding a row's address and reading the row
INDEX_AHEAD = 32  # ids between asking for an index entry and reading it
BAGS_PER_TASK = 128
TASK_COLUMNS = 4  # first lookup, last lookup, first bag, last bag


@njit(nogil=True)
def _resolve(table: Any, row: int) -> int:
    """The address of a row, prefetched; 0 when it has no slot, −1 when the id is out of range."""
    if row < 0 or row >= table[ROWS]:
        return -1
    slot = row
    if table[INDEX] != 0:
        slot = find(table, row)
        if slot < 0:
            return 0
    address = table[WEIGHTS] + slot * table[STRIDE]
    line = 0
    while line < table[STRIDE]:
        simd.prefetch(address + line)
        line += 64
    return address


@njit(nogil=True)
def _sum(out: int, ring: Any, p: int, q: int, dim: int, kind: int, weights: int, first: bool) -> None:
    """out (+)= Σ weight · row over ids p … q, all of them stored rows."""
    size = 4 if kind == simd.F32 else 2
    d = 0
    while d + 16 <= dim:
        acc = simd.splat16(np.float32(0)) if first else simd.load16(out + 4 * d)
        for i in range(p, q):
            x = load16(ring[i & (RING - 1)] + size * d, kind)
            if weights != 0:
                x = simd.multiply(simd.splat16(simd.load1(weights + 4 * i)), x)
            acc = simd.add(acc, x)
        simd.store(out + 4 * d, acc)
        d += 16
    if d + 8 <= dim:
        acc8 = simd.splat8(np.float32(0)) if first else simd.load8(out + 4 * d)
        for i in range(p, q):
            x8 = load8(ring[i & (RING - 1)] + size * d, kind)
            if weights != 0:
                x8 = simd.multiply(simd.splat8(simd.load1(weights + 4 * i)), x8)
            acc8 = simd.add(acc8, x8)
        simd.store(out + 4 * d, acc8)
        d += 8
    if d + 4 <= dim:
        acc4 = simd.splat4(np.float32(0)) if first else simd.load4(out + 4 * d)
        for i in range(p, q):
            x4 = load4(ring[i & (RING - 1)] + size * d, kind)
            if weights != 0:
                x4 = simd.multiply(simd.splat4(simd.load1(weights + 4 * i)), x4)
            acc4 = simd.add(acc4, x4)
        simd.store(out + 4 * d, acc4)
        d += 4
    while d < dim:
        acc1 = np.float32(0) if first else simd.load1(out + 4 * d)
        for i in range(p, q):
            x1 = load1(ring[i & (RING - 1)] + size * d, kind)
            if weights != 0:
                x1 = simd.load1(weights + 4 * i) * x1
            acc1 += x1
        simd.store(out + 4 * d, acc1)
        d += 1


@njit(nogil=True)
def _sum_any(
    out: int, ring: Any, p: int, q: int, dim: int, lookup: Any, table: Any, parameters: Any, first: bool
) -> None:
    """As `_sum`, where some rows are untouched: their values are generated."""
    kind = table[KIND]
    size = 4 if kind == simd.F32 else 2
    row = np.empty(dim, np.float32)
    if first:
        for d in range(dim):
            simd.store(out + 4 * d, np.float32(0))
    for i in range(p, q):
        address = ring[i & (RING - 1)]
        if address == -1:
            continue
        if address == 0 or untouched(address, kind):
            generate(table, parameters, simd.load_i64(lookup[IDS] + 8 * i), simd.address(row), dim)
        else:
            for d in range(dim):
                row[d] = load1(address + size * d, kind)
        weight = np.float32(1)
        if lookup[ID_WEIGHTS] != 0:
            weight = simd.load1(lookup[ID_WEIGHTS] + 4 * i)
        for d in range(dim):
            simd.store(out + 4 * d, simd.load1(out + 4 * d) + weight * row[d])


@njit(nogil=True)
def _scale(out: int, dim: int, factor: Any) -> None:
    for d in range(dim):
        simd.store(out + 4 * d, simd.load1(out + 4 * d) * factor)


@njit(nogil=True)
def _pool(
    lookup: Any, table: Any, parameters: Any, first_bag: int, last_bag: int, dim: int, ring: Any
) -> int:
    """Pool the bags of one lookup; returns 1 + the position of the first bad id, or 0."""
    ids, offsets = lookup[IDS], lookup[OFFSETS]
    bad = 0
    begin = first_bag
    stop = last_bag
    if offsets != 0:
        begin = simd.load_i64(offsets + 8 * first_bag)
        stop = simd.load_i64(offsets + 8 * last_bag)
    known = begin
    for bag in range(first_bag, last_bag):
        end = bag + 1 if offsets == 0 else simd.load_i64(offsets + 8 * (bag + 1))
        out = lookup[VECTORS] + bag * lookup[VECTOR_STRIDE]
        first = True
        length = end - begin
        while first or begin < end:
            piece = min(end, begin + RING - AHEAD)
            while known < min(stop, piece + AHEAD):
                if table[INDEX] != 0 and known + INDEX_AHEAD < stop:
                    prefetch_entry(table, simd.load_i64(ids + 8 * (known + INDEX_AHEAD)))
                address = _resolve(table, simd.load_i64(ids + 8 * known))
                ring[known & (RING - 1)] = address
                if address == -1 and bad == 0:
                    bad = known + 1
                known += 1
            stored = True
            for i in range(begin, piece):
                address = ring[i & (RING - 1)]
                if address <= 0 or untouched(address, table[KIND]):
                    stored = False
            if stored:
                _sum(out, ring, begin, piece, dim, table[KIND], lookup[ID_WEIGHTS], first)
            else:
                _sum_any(out, ring, begin, piece, dim, lookup, table, parameters, first)
            begin = piece
            first = False
        if lookup[MEAN] != 0 and length > 1:
            _scale(out, dim, np.float32(1) / np.float32(length))
    return bad


@njit(nogil=True)
def lookup_tasks(arguments: Any) -> None:
    """Draw tasks and do them. Arguments: lookups, count, tables, count, parameters, tasks, count, dim, errors."""
    a = carray(arguments, FIRST + 9)
    lookups = carray(simd.pointer(a[FIRST]), (a[FIRST + 1], LOOKUP_COLUMNS), np.int64)
    tables = carray(simd.pointer(a[FIRST + 2]), (a[FIRST + 3], TABLE_COLUMNS), np.int64)
    parameters = carray(simd.pointer(a[FIRST + 4]), (a[FIRST + 3], 4), np.float64)
    count = a[FIRST + 6]
    tasks = carray(simd.pointer(a[FIRST + 5]), (count, TASK_COLUMNS), np.int64)
    dim = a[FIRST + 7]
    errors = carray(simd.pointer(a[FIRST + 8]), (count, 2), np.int64)
    ring = np.empty(RING, np.int64)
    while True:
        task = simd.fetch_add(simd.address(a) + 8 * TASK, 1)
        if task >= count:
            return
        for i in range(tasks[task, 0], tasks[task, 1]):
            lookup = lookups[i]
            t = lookup[TABLE]
            bad = _pool(lookup, tables[t], parameters[t], tasks[task, 2], tasks[task, 3], dim, ring)
            if bad != 0 and errors[task, 1] == 0:
                errors[task, 0] = i
                errors[task, 1] = bad
