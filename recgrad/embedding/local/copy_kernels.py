"""Kernels of `RowCopy`: rows of several arrays that are put aside, gathered, and sorted by their numbers.

They run without Python's lock: a step does not wait for the thread that copies, nor that for the step.

    arrays    [arrays, ARRAY_COLUMNS]   address of slot 0, bytes a slot, bytes into a record
    records   rows that were put aside, numbered from 1 on, with the parts of all arrays side by side
"""

from __future__ import annotations

import numpy as np
from numba import njit

from recgrad.kernels import simd
from recgrad.kernels.parallel import FIRST, next_task
from recgrad.kernels.simd import field, load_i32, load_i64, prefetch, store_i32, store_i64

BASE, WIDTH, OFFSET, ARRAY_COLUMNS = range(4)

# What is to be put aside of one table.
(
    JOB_WHERE,  # int32 a slot; see `RowCopy`
    JOB_LIMIT,  # slots of the copy's moment
    JOB_ARRAYS,
    JOB_ARRAY_COUNT,
    JOB_SLOTS,  # int64, those that are about to be written
    JOB_SLOT_COUNT,
    JOB_RECORDS,  # where they lie
    JOB_RECORD,  # bytes of one
    JOB_BEFORE,  # how many there are
    JOB_KEPT,  # result: how many there are then
    JOB_COLUMNS,
) = range(11)
_AHEAD = 8
_DIGIT_BITS = 11
DIGITS = 1 << _DIGIT_BITS


@njit(nogil=True)
def _copy_bytes(source: int, target: int, size: int) -> None:
    at = 0
    while at + 64 <= size:
        simd.store(target + at, simd.load16(source + at))
        at += 64
    if size % 4 == 0:
        while at < size:
            store_i32(target + at, load_i32(source + at))
            at += 4
    while at < size:
        simd.store_u8(target + at, simd.load_u8(source + at))
        at += 1


@njit(nogil=True)
def _prefetch_slot(where: int, arrays: int, count: int, slot: int) -> None:
    prefetch(where + 4 * slot)
    for k in range(count):
        array = arrays + 8 * ARRAY_COLUMNS * k
        width = field(array, WIDTH)
        row = field(array, BASE) + slot * width
        for line in range(0, width, 64):
            prefetch(row + line)


@njit(nogil=True)
def keep_tasks(a: int) -> None:
    """Put rows aside that still are as they were. Arguments: jobs, their number; a task is a table."""
    while True:
        i = next_task(a)
        if i >= field(a, FIRST + 1):
            return
        job = field(a, FIRST) + 8 * JOB_COLUMNS * i
        where, limit = field(job, JOB_WHERE), field(job, JOB_LIMIT)
        arrays, count = field(job, JOB_ARRAYS), field(job, JOB_ARRAY_COUNT)
        slots, number = field(job, JOB_SLOTS), field(job, JOB_SLOT_COUNT)
        record, kept = field(job, JOB_RECORD), field(job, JOB_BEFORE)
        target = field(job, JOB_RECORDS) + record * kept
        for u in range(number):
            if u + _AHEAD < number and load_i64(slots + 8 * (u + _AHEAD)) < limit:
                _prefetch_slot(where, arrays, count, load_i64(slots + 8 * (u + _AHEAD)))
            slot = load_i64(slots + 8 * u)
            if slot >= limit or load_i32(where + 4 * slot) != 0:
                continue
            kept += 1
            store_i32(where + 4 * slot, np.int32(kept))
            for k in range(count):
                array = arrays + 8 * ARRAY_COLUMNS * k
                width = field(array, WIDTH)
                _copy_bytes(field(array, BASE) + slot * width, target + field(array, OFFSET), width)
            target += record
        store_i64(job + 8 * JOB_KEPT, kept)


@njit(nogil=True)
def gather_task(a: int) -> None:
    """Copy slots, or the records of those that were put aside, and note that they are copied.

    Arguments: where, arrays, their number, targets (an address an array), slots, their number, records, bytes
    of one.
    """
    where, arrays, count = field(a, FIRST), field(a, FIRST + 1), field(a, FIRST + 2)
    targets, slots, number = field(a, FIRST + 3), field(a, FIRST + 4), field(a, FIRST + 5)
    records, record = field(a, FIRST + 6), field(a, FIRST + 7)
    for i in range(number):
        if i + _AHEAD < number:
            _prefetch_slot(where, arrays, count, load_i64(slots + 8 * (i + _AHEAD)))
        slot = load_i64(slots + 8 * i)
        state = np.int64(load_i32(where + 4 * slot))
        aside = records + record * (state - 1)
        if state == 0:
            store_i32(where + 4 * slot, np.int32(-1))
        for k in range(count):
            array = arrays + 8 * ARRAY_COLUMNS * k
            width = field(array, WIDTH)
            source = aside + field(array, OFFSET) if state > 0 else field(array, BASE) + slot * width
            _copy_bytes(source, load_i64(targets + 8 * k) + i * width, width)


@njit(nogil=True)
def sort_task(a: int) -> None:
    """Sort pairs of int64 by the first, which are not negative: least digits first, as many as there are.

    Arguments: firsts, seconds, their number, room for as many firsts and seconds, counts of DIGITS, result: 1
    if the sorted ones are in the room.
    """
    keys, values, count = field(a, FIRST), field(a, FIRST + 1), field(a, FIRST + 2)
    to_keys, to_values, counts = field(a, FIRST + 3), field(a, FIRST + 4), field(a, FIRST + 5)
    every = before = 0
    ordered = True
    for i in range(count):
        key = load_i64(keys + 8 * i)
        every |= key
        ordered = ordered and key >= before
        before = key
    moved = 0
    shift = 0
    while not ordered and shift < 63 and (every >> shift) != 0:
        for digit in range(DIGITS):
            store_i64(counts + 8 * digit, 0)
        for i in range(count):
            at = counts + 8 * ((load_i64(keys + 8 * i) >> shift) & (DIGITS - 1))
            store_i64(at, load_i64(at) + 1)
        total = 0
        for digit in range(DIGITS):
            own = load_i64(counts + 8 * digit)
            store_i64(counts + 8 * digit, total)
            total += own
        for i in range(count):
            key = load_i64(keys + 8 * i)
            at = counts + 8 * ((key >> shift) & (DIGITS - 1))
            place = load_i64(at)
            store_i64(at, place + 1)
            store_i64(to_keys + 8 * place, key)
            store_i64(to_values + 8 * place, load_i64(values + 8 * i))
        keys, to_keys = to_keys, keys
        values, to_values = to_values, values
        moved = 1 - moved
        shift += _DIGIT_BITS
    store_i64(field(a, FIRST + 6), moved)
