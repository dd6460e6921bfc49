"""The plan of an update: the distinct rows of each table and, for each, where its gradients are.

One task per table. A scratch hash table over the batch's ids, or a direct map for a small
table, numbers the distinct rows in order of appearance; a prefix sum over their counts then
gives every row the list of its gradient addresses, in the order of the batch. No sort, no atomics,
one order of summation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from recgrad.embedding.local import simd
from recgrad.embedding.local.index import MIN_MOVES, MOVES_PER_INSERT, find_or_add, move, prefetch_entry
from recgrad.embedding.local.layout import (
    BAGS,
    COUNT,
    ID_WEIGHTS,
    IDS,
    INDEX,
    LOOKUP_COLUMNS,
    MEAN,
    OFFSETS,
    ROWS,
    TABLE_COLUMNS,
    VECTOR_STRIDE,
    VECTORS,
)
from recgrad.embedding.local.parallel import FIRST, TASK, THREAD

OCCURRENCES_PER_TASK = 2048

# One entry of work: a table and its slice of the plan's arrays.
(
    JOB_TABLE,  # row of the table matrix
    JOB_SOURCE,  # first source
    JOB_SOURCES,  # one past its last source
    JOB_START,  # where its occurrences begin in the plan's arrays
    JOB_TASK,  # its first task in the list of update tasks
    JOB_TASKS,  # one past its last task
    JOB_SCALED,  # whether gradients have coefficients
    JOB_ROWS,  # result: the number of distinct rows
    JOB_BAD,  # result: 1 + an id out of range, or 0
    JOB_COLUMNS,
) = range(10)


@njit(nogil=True)
def _number_rows(job: Any, sources: Any, table: Any, places: Any, slots: Any, rows: Any, counts: Any) -> int:
    """Number the distinct rows; fills rows, counts and the number of each occurrence."""
    n = 0
    for s in range(job[JOB_SOURCE], job[JOB_SOURCES]):
        offsets = sources[s, OFFSETS]
        n += sources[s, BAGS] if offsets == 0 else _span(offsets, sources[s, BAGS])
    bits = 6
    while (1 << bits) < n + (n >> 1) and (1 << bits) < table[ROWS]:
        bits += 1
    direct = (1 << bits) >= table[ROWS]
    mask = (1 << bits) - 1
    for i in range(mask + 1):
        places[i] = -1
    start = job[JOB_START]
    distinct = 0
    k = 0
    for s in range(job[JOB_SOURCE], job[JOB_SOURCES]):
        offsets = sources[s, OFFSETS]
        p, q = 0, sources[s, BAGS]
        if offsets != 0:
            p, q = simd.load_i64(offsets), simd.load_i64(offsets + 8 * q)
        for i in range(p, q):
            row = simd.load_i64(sources[s, IDS] + 8 * i)
            if row < 0 or row >= table[ROWS]:
                job[JOB_BAD] = 1 + s
                return 0
            j = row if direct else ((row * -7046029254386353131) >> (64 - bits)) & mask
            number = places[j]
            while number >= 0 and rows[start + number] != row:
                j = (j + 1) & mask
                number = places[j]
            if number < 0:
                number = distinct
                distinct += 1
                places[j] = number
                rows[start + number] = row
                counts[start + number] = 1
            else:
                counts[start + number] += 1
            slots[k] = number
            k += 1
    return distinct


@njit(nogil=True)
def _span(offsets: int, bags: int) -> int:
    return simd.load_i64(offsets + 8 * bags) - simd.load_i64(offsets)


@njit(nogil=True)
def _place(job: Any, sources: Any, slots: Any, ends: Any, gradients: Any, coefficients: Any) -> None:
    """Write each occurrence's gradient address (and coefficient) into its row's list.

    `ends` holds where each row's list begins and is left at where it ends.
    """
    start = job[JOB_START]
    k = 0
    for s in range(job[JOB_SOURCE], job[JOB_SOURCES]):
        vector, stride = sources[s, VECTORS], sources[s, VECTOR_STRIDE]
        offsets, weights = sources[s, OFFSETS], sources[s, ID_WEIGHTS]
        begin = 0
        if offsets != 0:
            begin = simd.load_i64(offsets)
        for bag in range(sources[s, BAGS]):
            end = bag + 1 if offsets == 0 else simd.load_i64(offsets + 8 * (bag + 1))
            for i in range(begin, end):
                number = slots[k]
                k += 1
                at = ends[start + number]
                ends[start + number] = at + 1
                gradients[at] = vector
                if job[JOB_SCALED] != 0:
                    c = np.float32(1)
                    if weights != 0:
                        c = simd.load1(weights + 4 * i)
                    if sources[s, MEAN] != 0 and end - begin > 1:
                        c = c * (np.float32(1) / np.float32(end - begin))
                    coefficients[at] = c
            begin = end
            vector += stride


@njit(nogil=True)
def _assign_slots(table: Any, rows: Any, slots: Any, start: int, distinct: int) -> None:
    """Slots of the distinct rows; rows that have none get the next."""
    if table[INDEX] == 0:
        for u in range(start, start + distinct):
            slots[u] = rows[u]
        return
    before = table[COUNT]
    last = start + distinct
    for u in range(start, min(start + 16, last)):
        prefetch_entry(table, rows[u])
    for u in range(start, last):
        if u + 16 < last:
            prefetch_entry(table, rows[u + 16])
        slots[u] = find_or_add(table, rows[u])
    move(table, MIN_MOVES + MOVES_PER_INSERT * (table[COUNT] - before))


@njit(nogil=True)
def plan_tasks(arguments: Any) -> None:
    """Plan the update of each table.

    Arguments: jobs, count, sources, count, tables, count, places and its columns, numbers and
    its columns (scratch, a row per thread), rows, slots, ends, gradients, coefficients,
    occurrences, cuts (first distinct row of each update task), its length.
    """
    a = carray(arguments, FIRST + 18)
    jobs = carray(simd.pointer(a[FIRST]), (a[FIRST + 1], JOB_COLUMNS), np.int64)
    sources = carray(simd.pointer(a[FIRST + 2]), (a[FIRST + 3], LOOKUP_COLUMNS), np.int64)
    tables = carray(simd.pointer(a[FIRST + 4]), (a[FIRST + 5], TABLE_COLUMNS), np.int64)
    thread = simd.fetch_add(simd.address(a) + 8 * THREAD, 1)
    places = carray(simd.pointer(a[FIRST + 6] + thread * a[FIRST + 7] * 4), a[FIRST + 7], np.int32)
    numbers = carray(simd.pointer(a[FIRST + 8] + thread * a[FIRST + 9] * 4), a[FIRST + 9], np.int32)
    n = a[FIRST + 15]
    rows = carray(simd.pointer(a[FIRST + 10]), n, np.int64)
    slots = carray(simd.pointer(a[FIRST + 11]), n, np.int64)
    ends = carray(simd.pointer(a[FIRST + 12]), n, np.int64)
    gradients = carray(simd.pointer(a[FIRST + 13]), n, np.int64)
    coefficients = carray(simd.pointer(a[FIRST + 14]), n, np.float32)
    cuts = carray(simd.pointer(a[FIRST + 16]), a[FIRST + 17], np.int64)
    while True:
        i = simd.fetch_add(simd.address(a) + 8 * TASK, 1)
        if i >= a[FIRST + 1]:
            return
        job = jobs[i]
        table = tables[job[JOB_TABLE]]
        distinct = _number_rows(job, sources, table, places, numbers, rows, ends)
        job[JOB_ROWS] = distinct
        if job[JOB_BAD] != 0:
            continue
        start = job[JOB_START]
        at = start
        task = job[JOB_TASK]
        for u in range(start, start + distinct):
            count = ends[u]
            ends[u] = at
            if at - start >= (task - job[JOB_TASK]) * OCCURRENCES_PER_TASK:
                cuts[task] = u
                task += 1
            at += count
        for rest in range(task, job[JOB_TASKS]):
            cuts[rest] = start + distinct
        _place(job, sources, numbers, ends, gradients, coefficients)
        _assign_slots(table, rows, slots, start, distinct)
