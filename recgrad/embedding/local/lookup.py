"""The forward kernel: looks up and pools the bags of all features of one dim in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from recgrad.embedding.local.catch_up import move_of, read_moved, read_moved_wide
from recgrad.embedding.local.index import find, prefetch_entry
from recgrad.embedding.local.layout import (
    DIRECTION,
    HISTORY,
    ID_WEIGHTS,
    IDS,
    INDEX,
    KIND,
    LOOKUP_COLUMNS,
    MEAN,
    OFFSETS,
    READ,
    ROWS,
    STRIDE,
    TABLE,
    TABLE_COLUMNS,
    VECTOR_STRIDE,
    VECTORS,
    WEIGHTS,
)
from recgrad.embedding.local.rows import (
    ZERO,
    copy,
    copy_wide,
    generate,
    load_scaled,
    load_stored,
    prefetch_row,
    read,
    untouched,
)
from recgrad.kernels import simd
from recgrad.kernels.parallel import FIRST, next_task
from recgrad.kernels.simd import field, load_i64

RING = 512  # row addresses that are known ahead; a longer bag is summed in pieces
AHEAD = 32  # ids between finding a row's address and reading the row
INDEX_AHEAD = 32  # ids between asking for an index entry and reading it
BAGS_AHEAD = 8  # outputs lie a whole block's width apart: bags between asking for one and writing it
BAGS_PER_TASK = 128
TASK_COLUMNS = 5  # first lookup, last lookup, first bag, last bag, whether `_copy_rows` does it

# The kernel's arguments: sizes, then addresses.
DIM, TASK_COUNT, LOOKUPS, TABLES, PARAMETERS, TASKS, ERRORS = range(FIRST, FIRST + 7)


@njit(nogil=True, inline="always")
def _sum_part(zero, out, ring, p, q, d, kind, weights, first):  # type: ignore[no-untyped-def]
    """As `_sum`, of as many elements as `zero` has, from element d on."""
    size = 4 if kind == simd.F32 else 2
    acc = zero if first else simd.load(zero, out + 4 * d)
    for i in range(p, q):
        row = load_i64(ring + 8 * (i & (RING - 1)))
        x = load_scaled(zero, row, d) if kind == simd.I8 else load_stored(zero, row + size * d, kind)
        if weights != 0:
            x = simd.multiply(simd.splat(zero, simd.load1(weights + 4 * i)), x)
        acc = simd.add(acc, x)
    simd.store(out + 4 * d, acc)


@njit(nogil=True)
def _sum(out: int, ring: int, p: int, q: int, dim: int, kind: int, weights: int, first: bool) -> None:
    """out (+)= Σ weight · row over ids p … q, all of them stored rows; `ring` holds their addresses."""
    d = 0
    while d + 16 <= dim:
        _sum_part(simd.zeros16(), out, ring, p, q, d, kind, weights, first)
        d += 16
    if d + 8 <= dim:
        _sum_part(simd.zeros8(), out, ring, p, q, d, kind, weights, first)
        d += 8
    if d + 4 <= dim:
        _sum_part(simd.zeros4(), out, ring, p, q, d, kind, weights, first)
        d += 4
    while d < dim:
        _sum_part(ZERO, out, ring, p, q, d, kind, weights, first)
        d += 1


@njit(nogil=True, inline="always")
def _sum_moved_part(zero, out, ring, p, q, d, direction, weights, first):  # type: ignore[no-untyped-def]
    """As `_sum_moved`, of as many elements as `zero` has, from element d on."""
    acc = zero if first else simd.load(zero, out + 4 * d)
    for i in range(p, q):
        at = ring + 8 * (i & (RING - 1))
        row, move = load_i64(at), simd.load1(at + 8 * RING)
        u = simd.load_packed(zero, row + direction + 4 * d)
        x = simd.subtract(simd.load(zero, row + 4 * d), simd.multiply(simd.splat(zero, move), u))
        if weights != 0:
            x = simd.multiply(simd.splat(zero, simd.load1(weights + 4 * i)), x)
        acc = simd.add(acc, x)
    simd.store(out + 4 * d, acc)


@njit(nogil=True)
def _sum_moved(out: int, ring: int, p: int, q: int, dim: int, table: int, weights: int, first: bool) -> None:
    """As `_sum`, of float32 rows that move on while no batch touches them."""
    direction, moves = field(table, DIRECTION), ring + 8 * RING
    for i in range(p, q):
        at = 8 * (i & (RING - 1))
        simd.store(moves + at, move_of(table, load_i64(ring + at), dim))
    d = 0
    while d + 16 <= dim:
        _sum_moved_part(simd.zeros16(), out, ring, p, q, d, direction, weights, first)
        d += 16
    while d < dim:
        _sum_moved_part(ZERO, out, ring, p, q, d, direction, weights, first)
        d += 1


@njit(nogil=True)
def _sum_any(
    out: int, ring: int, p: int, q: int, dim: int, lookup: int, table: int, parameters: int, first: bool
) -> None:
    """As `_sum`, where some rows are untouched (generated), out of range (left out) or have to catch up."""
    kind, weights, catches_up = field(table, KIND), field(lookup, ID_WEIGHTS), field(table, HISTORY) != 0
    row = np.empty(dim, np.float32)
    if first:
        for d in range(dim):
            simd.store(out + 4 * d, np.float32(0))
    for i in range(p, q):
        address = load_i64(ring + 8 * (i & (RING - 1)))
        if address == -1:
            continue
        if address == 0 or untouched(address, kind):
            generate(table, parameters, load_i64(field(lookup, IDS) + 8 * i), simd.address(row), dim)
        elif catches_up:
            source = address
            if kind != simd.F32:
                source = simd.address(row)
                read(address, kind, source, dim)
            read_moved(table, address, source, simd.address(row), dim)
        else:
            read(address, kind, simd.address(row), dim)
        weight = np.float32(1)
        if weights != 0:
            weight = simd.load1(weights + 4 * i)
        _add(out, simd.address(row), weight, dim)


@njit(nogil=True, inline="always")
def _add_part(like, out, row, weight):  # type: ignore[no-untyped-def]
    x = simd.multiply(simd.splat(like, weight), simd.load(like, row))
    simd.store(out, simd.add(simd.load(like, out), x))


@njit(nogil=True)
def _add(out: int, row: int, weight: Any, dim: int) -> None:
    """out += weight · row."""
    d = 0
    while d + 8 <= dim:
        _add_part(simd.zeros8(), out + 4 * d, row + 4 * d, weight)
        d += 8
    while d < dim:
        _add_part(ZERO, out + 4 * d, row + 4 * d, weight)
        d += 1


@njit(nogil=True)
def _scale(out: int, dim: int, factor: Any) -> None:
    for d in range(dim):
        simd.store(out + 4 * d, simd.load1(out + 4 * d) * factor)


@njit(nogil=True)
def _copy_rows(a: int, first: int, last: int, first_bag: int, last_bag: int, error: int) -> None:
    """Bags of one unweighted id each, of plain float32 tables; sample by sample, so outputs lie in order."""
    dim, lookups, tables = field(a, DIM), field(a, LOOKUPS), field(a, TABLES)
    final, samples_ahead = last_bag - 1, max(1, AHEAD // (last - first))
    for bag in range(first_bag, last_bag):
        ahead = min(bag + samples_ahead, final)
        for i in range(first, last):
            lookup = lookups + 8 * LOOKUP_COLUMNS * i
            table = tables + 8 * TABLE_COLUMNS * field(lookup, TABLE)
            weights = field(table, WEIGHTS)
            stride = field(table, STRIDE)
            prefetch_row(weights + stride * field(field(lookup, IDS), ahead), field(table, READ))
            row = field(field(lookup, IDS), bag)
            out = field(lookup, VECTORS) + bag * field(lookup, VECTOR_STRIDE)
            address = weights + stride * row
            if row < 0 or row >= field(table, ROWS):
                if field(error, 1) == 0:
                    simd.store_i64(error, i)
                    simd.store_i64(error + 8, bag + 1)
            elif untouched(address, simd.F32):
                generate(table, field(a, PARAMETERS) + 32 * field(lookup, TABLE), row, out, dim)
            elif field(table, HISTORY) != 0:
                if dim % 16 == 0:
                    read_moved_wide(table, address, out, dim)
                else:
                    read_moved(table, address, address, out, dim)
            elif dim % 16 == 0:
                copy_wide(address, out, dim)
            else:
                copy(address, out, dim)


@njit(nogil=True)
def _first_rows(lookup: int, table: int, first_bag: int, last_bag: int, ring: int) -> int:
    """Write where the row of each bag is: 0 if it has no slot, −1 for an empty bag; asks for them all.

    Returns 1 + the position of the first bad id, or 0; −1 if a bag holds more than one id.
    """
    ids, offsets, rows = field(lookup, IDS), field(lookup, OFFSETS), field(table, ROWS)
    weights, stride, size = field(table, WEIGHTS), field(table, STRIDE), field(table, READ)
    compact, at, end, stop = field(table, INDEX) != 0, first_bag, first_bag, last_bag
    if offsets != 0:
        at = end = load_i64(offsets + 8 * first_bag)
        stop = load_i64(offsets + 8 * last_bag)
    if compact:
        for ahead in range(at, min(at + INDEX_AHEAD, stop)):
            prefetch_entry(table, load_i64(ids + 8 * ahead))
    bad = 0
    for bag in range(first_bag, last_bag):
        end = bag + 1 if offsets == 0 else load_i64(offsets + 8 * (bag + 1))
        if end > at + 1:
            return -1
        address = -1
        if end > at:
            if compact and at + INDEX_AHEAD < stop:
                prefetch_entry(table, load_i64(ids + 8 * (at + INDEX_AHEAD)))
            row, address = load_i64(ids + 8 * at), 0
            if row < 0 or row >= rows:
                bad = at + 1 if bad == 0 else bad
            else:
                slot = find(table, row) if compact else row
                if slot >= 0:
                    address = weights + slot * stride
                    prefetch_row(address, size)
        simd.store_i64(ring, address)
        ring += 8
        at = end
    return bad


@njit(nogil=True)
def _copy_single(
    lookup: int, table: int, parameters: int, first_bag: int, last_bag: int, dim: int, ring: int
) -> int:
    """As `pool_bags`, of bags of at most one unweighted id, RING of them, from a table that `_is_still`.

    Where a bag holds more, nothing is written, and −1 returned. All addresses come first: when the first row
    is copied, many are on their way from memory.
    """
    bad = _first_rows(lookup, table, first_bag, last_bag, ring)
    if bad != 0:
        return bad
    ids, offsets, step = field(lookup, IDS), field(lookup, OFFSETS), field(lookup, VECTOR_STRIDE)
    out = field(lookup, VECTORS) + first_bag * step
    for bag in range(first_bag, last_bag):
        simd.prefetch_to_write(out + BAGS_AHEAD * step)
        address = load_i64(ring)
        if address == -1:
            for d in range(dim):
                simd.store(out + 4 * d, ZERO)
        elif address == 0 or untouched(address, simd.F32):
            at = bag if offsets == 0 else load_i64(offsets + 8 * bag)
            generate(table, parameters, load_i64(ids + 8 * at), out, dim)
        elif dim % 16 == 0:
            copy_wide(address, out, dim)
        else:
            copy(address, out, dim)
        out += step
        ring += 8
    return 0


@njit(nogil=True)
def resolve(table: int, row: int) -> int:
    """The address of a row, prefetched; 0 when it has no slot, −1 when the id is out of range."""
    if row < 0 or row >= field(table, ROWS):
        return -1
    slot = row
    if field(table, INDEX) != 0:
        slot = find(table, row)
        if slot < 0:
            return 0
    address = field(table, WEIGHTS) + slot * field(table, STRIDE)
    prefetch_row(address, field(table, READ))
    return address


@njit(nogil=True)
def pool_bags(
    lookup: int, table: int, parameters: int, first_bag: int, last_bag: int, dim: int, ring: int
) -> int:
    """Pool the bags of one lookup; returns 1 + the position of the first bad id, or 0."""
    ids, offsets, weights = field(lookup, IDS), field(lookup, OFFSETS), field(lookup, ID_WEIGHTS)
    kind, compact, mean = field(table, KIND), field(table, INDEX) != 0, field(lookup, MEAN) != 0
    moves = field(table, HISTORY) != 0 and kind == simd.F32
    short_moves = field(table, HISTORY) != 0 and kind != simd.F32
    step = field(lookup, VECTOR_STRIDE)
    out = field(lookup, VECTORS) + first_bag * step
    bad = 0
    begin = first_bag
    stop = last_bag
    if offsets != 0:
        begin = load_i64(offsets + 8 * first_bag)
        stop = load_i64(offsets + 8 * last_bag)
    known = begin
    for bag in range(first_bag, last_bag):
        end = bag + 1 if offsets == 0 else load_i64(offsets + 8 * (bag + 1))
        simd.prefetch_to_write(out + BAGS_AHEAD * step)
        first = True
        length = end - begin
        while first or begin < end:
            piece = min(end, begin + RING - AHEAD)
            while known < min(stop, piece + AHEAD):
                if compact and known + INDEX_AHEAD < stop:
                    prefetch_entry(table, load_i64(ids + 8 * (known + INDEX_AHEAD)))
                address = resolve(table, load_i64(ids + 8 * known))
                simd.store_i64(ring + 8 * (known & (RING - 1)), address)
                if address == -1 and bad == 0:
                    bad = known + 1
                known += 1
            stored = True
            for i in range(begin, piece):
                address = load_i64(ring + 8 * (i & (RING - 1)))
                if address <= 0 or untouched(address, kind) or short_moves:
                    stored = False
            if stored and moves:
                _sum_moved(out, ring, begin, piece, dim, table, weights, first)
            elif stored:
                _sum(out, ring, begin, piece, dim, kind, weights, first)
            else:
                _sum_any(out, ring, begin, piece, dim, lookup, table, parameters, first)
            begin = piece
            first = False
        if mean and length > 1:
            _scale(out, dim, np.float32(1) / np.float32(length))
        out += step
    return bad


@njit(nogil=True)
def _is_still(table: int) -> bool:
    """Whether rows are float32 and stay as they are while no batch touches them."""
    return field(table, KIND) == simd.F32 and field(table, HISTORY) == 0


@njit(nogil=True)
def _look_up(a: int, i: int, first_bag: int, last_bag: int, ring: int) -> int:
    """Pool some bags of a lookup; returns 1 + the position of the first bad id, or 0."""
    lookup, dim = field(a, LOOKUPS) + 8 * LOOKUP_COLUMNS * i, field(a, DIM)
    t = field(lookup, TABLE)
    table, parameters = field(a, TABLES) + 8 * TABLE_COLUMNS * t, field(a, PARAMETERS) + 32 * t
    bad = -1
    if field(lookup, ID_WEIGHTS) == 0 and _is_still(table) and last_bag - first_bag <= RING:
        bad = _copy_single(lookup, table, parameters, first_bag, last_bag, dim, ring)
    if bad < 0:
        bad = pool_bags(lookup, table, parameters, first_bag, last_bag, dim, ring)
    return bad


@njit(nogil=True)
def lookup_tasks(a: int) -> None:
    """Draw tasks and do them."""
    ring = np.empty(2 * RING, np.int64)  # of addresses, and of how far the rows have moved
    while True:
        task = next_task(a)
        if task >= field(a, TASK_COUNT):
            return
        line = field(a, TASKS) + 8 * TASK_COLUMNS * task
        error = field(a, ERRORS) + 16 * task
        first, last, first_bag, last_bag = field(line, 0), field(line, 1), field(line, 2), field(line, 3)
        if field(line, 4) != 0:
            _copy_rows(a, first, last, first_bag, last_bag, error)
            continue
        for i in range(first, last):
            bad = _look_up(a, i, first_bag, last_bag, simd.address(ring))
            if bad != 0 and field(error, 1) == 0:
                simd.store_i64(error, i)
                simd.store_i64(error + 8, bad)
