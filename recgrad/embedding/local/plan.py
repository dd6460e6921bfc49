"""The plan of an update: the distinct rows of each table and, for each, where its gradients are.

An id that occurs n times in a batch is one row with n gradients, which are to be added up in the order of the
batch, whatever thread does it. The plan is a list of gradient addresses, row after row (as a sparse matrix in
CSR form), made by counting as a radix sort does: no comparison, no atomics, one order of summation.

Example: one table, ids 7 2 7 9 2 7 of a batch, gradients at g0 … g5.

    arrange_task   sources of gradients are sorted by table, and each table is a job: its slice of all arrays
                   below begins at JOB_START and is as long as it has ids (occurrences)
    _number_rows   rows are numbered as they appear, by a hash table of this thread that fits the cache
                   (or by the row itself, where the table is small)
                       ROW_NUMBERS  7  2  9  ·  ·  ·        distinct rows
                       ENDS         3  2  1  ·  ·  ·        how often each occurs
                       NUMBERS      0  1  0  2  1  0        of each occurrence, scratch
    _begin_lists   counts become where each list begins; every OCCURRENCES_PER_TASK or so a task of the update
                   ends, always between two rows, so that each row has one owner
                       ENDS         0  3  5                 CUTS  0
    _place         each occurrence puts its gradient's address at its row's next place
                       GRADIENTS    g0 g2 g5 g1 g4 g3
                       ENDS         3  5  6                 now where each list ends
    _assign_slots  compact tables: row ─▶ slot, in the one place where slots are handed out
    _plan_small    instead of all that, for tables with fewer rows than ids: a list is the address of a sum

A job is one task of one thread, because numbering is serial; the update that follows is cut finer. Where
bags are long (PACK_FROM), each gradient is read by several rows, and in the batch's wide block each lies on a
page of its own: they are copied side by side first, which spares address translation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from recgrad.embedding.local.index import (
    GOLDEN,
    MIN_MOVES,
    MOVES_PER_INSERT,
    find_or_add,
    move,
    prefetch_entry,
)
from recgrad.embedding.local.layout import (
    BAGS,
    COUNT,
    FROZEN,
    ID_WEIGHTS,
    IDS,
    INDEX,
    LOOKUP_COLUMNS,
    MEAN,
    OFFSETS,
    ROWS,
    TABLE,
    TABLE_COLUMNS,
    VECTOR_STRIDE,
    VECTORS,
)
from recgrad.embedding.local.rows import copy
from recgrad.embedding.local.small_tables import add_source, begin_sums, list_sums, room_for_sums
from recgrad.kernels import simd
from recgrad.kernels.parallel import FIRST, next_task, thread_number
from recgrad.kernels.simd import field, load_i32, load_i64, store_i32, store_i64

OCCURRENCES_PER_TASK = 2048
PACK_FROM = 3  # ids per bag from which a copy of the gradients pays: it spares address translation

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
    JOB_BAD,  # result: 1 when an id is out of range
    JOB_PACKED,  # first line of its copy of gradients, or −1
    JOB_SUMS,  # first line of the room for its sums
    JOB_ROOM,  # how many lines that has: one a row of a small table, none for others
    JOB_SIZE,  # its occurrences
    JOB_COLUMNS,
) = range(14)

# What `arrange_task` and `plan_tasks` tell of the whole plan.
(
    FOUND,  # jobs
    UPDATE_TASKS,
    SIZE,  # occurrences
    BUSIEST,  # the most occurrences of one job
    ANY_SCALED,
    COPIED,  # lines of all copies of gradients, and of all room for sums
    ANY_BAD,
    TOTALS,
) = range(8)

# Arguments of `arrange_task`.
(
    LINE_COUNT,
    LINES,  # int64 [lines, LOOKUP_COLUMNS]: sources of gradients in the order of summation
    TABLE_COUNT,
    PLACE_OF,  # int64 [tables + 1], scratch
    ARRANGED,  # result, as LINES: the sources of a table together
    ARRANGED_JOBS,  # result, int64 [lines, JOB_COLUMNS]
    ARRANGED_TOTALS,  # result, int64 [TOTALS]
    SUMS_DIM,  # the dim if gradients may be summed as they are, else 0
    ARRANGED_TABLES,  # int64 [tables, TABLE_COLUMNS]
) = range(FIRST, FIRST + 9)


# Arguments of `plan_tasks`.
(
    JOB_COUNT,
    PLACES,  # int32 [threads, PLACE_COLUMNS], scratch: number of the row at each place of the hash table
    PLACE_COLUMNS,
    NUMBERS,  # int32 [threads, NUMBER_COLUMNS], scratch: number of each occurrence's row
    NUMBER_COLUMNS,
    JOBS,  # int64 [jobs, JOB_COLUMNS]
    SOURCES,  # int64 [sources, LOOKUP_COLUMNS]
    TABLES,  # int64 [tables, TABLE_COLUMNS]
    ROW_NUMBERS,  # result, int64: the distinct rows of each job, from its start
    SLOTS,  # result, int64: their slots, where the table is compact
    ENDS,  # result, int64: where their lists of gradients end
    GRADIENTS,  # result, int64 [occurrences]: addresses, row after row
    COEFFICIENTS,  # result, float32 [occurrences], where a job has them
    CUTS,  # result, int64: the first distinct row of each update task
    TASK_JOBS,  # result, int64: the job of each update task
    PACKED,  # float32 [COPIED, dim], scratch that the update reads
    PLAN_TOTALS,  # int64 [TOTALS]
    DIM,
) = range(FIRST, FIRST + 18)


@njit(nogil=True)
def _bits(occurrences: int, rows: int) -> int:
    """The size of the hash table: half as many places again as ids, or one for each row."""
    bits = 6
    while (1 << bits) < occurrences + (occurrences >> 1) and (1 << bits) < rows:
        bits += 1
    return bits


@njit(nogil=True)
def _span(source: int) -> tuple[int, int]:
    """The first and one past the last id of a source."""
    offsets, bags = field(source, OFFSETS), field(source, BAGS)
    if offsets == 0:
        return 0, bags
    return load_i64(offsets), load_i64(offsets + 8 * bags)


@njit(nogil=True)
def _arrange(a: int, arranged: int) -> None:
    """Sort the sources by table; those of one table stay in order."""
    lines, count, tables, place = (
        field(a, LINES),
        field(a, LINE_COUNT),
        field(a, TABLE_COUNT),
        field(a, PLACE_OF),
    )
    for t in range(tables + 1):
        store_i64(place + 8 * t, 0)
    for i in range(count):
        at = place + 8 * (field(lines, i * LOOKUP_COLUMNS + TABLE) + 1)
        store_i64(at, load_i64(at) + 1)
    for t in range(tables):
        store_i64(place + 8 * (t + 1), load_i64(place + 8 * (t + 1)) + load_i64(place + 8 * t))
    for i in range(count):
        at = place + 8 * field(lines, i * LOOKUP_COLUMNS + TABLE)
        target = arranged + 8 * LOOKUP_COLUMNS * load_i64(at)
        store_i64(at, load_i64(at) + 1)
        for c in range(LOOKUP_COLUMNS):
            store_i64(target + 8 * c, field(lines, i * LOOKUP_COLUMNS + c))


@njit(nogil=True)
def arrange_task(a: int) -> None:
    """Divide the sources into jobs, one for each table, and say how large the plan will be."""
    arranged, totals, count = (field(a, ARRANGED), field(a, ARRANGED_TOTALS), field(a, LINE_COUNT))
    _arrange(a, arranged)
    found = tasks = size = busiest = any_scaled = copied = 0
    s = 0
    while s < count:
        job = field(a, ARRANGED_JOBS) + 8 * JOB_COLUMNS * found
        table = field(arranged, s * LOOKUP_COLUMNS + TABLE)
        store_i64(job + 8 * JOB_TABLE, table)
        store_i64(job + 8 * JOB_SOURCE, s)
        own = bags = scaled = 0
        while s < count and field(arranged, s * LOOKUP_COLUMNS + TABLE) == table:
            source = arranged + 8 * LOOKUP_COLUMNS * s
            p, q = _span(source)
            own += q - p
            bags += field(source, BAGS)
            if field(source, ID_WEIGHTS) != 0 or (field(source, MEAN) != 0 and field(source, OFFSETS) != 0):
                scaled = 1
            s += 1
        store_i64(job + 8 * JOB_SOURCES, s)
        store_i64(job + 8 * JOB_START, size)
        store_i64(job + 8 * JOB_TASK, tasks)
        tasks += (own + OCCURRENCES_PER_TASK - 1) // OCCURRENCES_PER_TASK
        store_i64(job + 8 * JOB_TASKS, tasks)
        store_i64(job + 8 * JOB_SCALED, scaled)
        store_i64(job + 8 * JOB_ROWS, 0)
        store_i64(job + 8 * JOB_BAD, 0)
        store_i64(job + 8 * JOB_SIZE, own)
        pack = own > 0 and own >= PACK_FROM * bags
        store_i64(job + 8 * JOB_PACKED, copied if pack else -1)
        copied += bags if pack else 0
        room = 0
        if field(a, SUMS_DIM) > 0 and scaled == 0:
            room = room_for_sums(
                field(a, ARRANGED_TABLES) + 8 * TABLE_COLUMNS * table, own, field(a, SUMS_DIM)
            )
        store_i64(job + 8 * JOB_SUMS, copied)
        store_i64(job + 8 * JOB_ROOM, room)
        copied += room
        found += 1
        size += own
        busiest = max(busiest, own)
        any_scaled |= scaled
    store_i64(totals + 8 * FOUND, found)
    store_i64(totals + 8 * UPDATE_TASKS, tasks)
    store_i64(totals + 8 * SIZE, size)
    store_i64(totals + 8 * BUSIEST, busiest)
    store_i64(totals + 8 * ANY_SCALED, any_scaled)
    store_i64(totals + 8 * COPIED, copied)
    store_i64(totals + 8 * ANY_BAD, 0)


@njit(nogil=True)
def _number_rows(
    job: int, sources: int, frozen: int, limit: int, places: int, numbers: int, rows: int, counts: int
) -> int:
    """Number the distinct rows; fills rows, counts and the number of each occurrence. −1 for a bad id.

    Occurrences of rows below `frozen` have the number −1: their gradients go nowhere.
    """
    n = 0
    for s in range(field(job, JOB_SOURCE), field(job, JOB_SOURCES)):
        p, q = _span(sources + 8 * LOOKUP_COLUMNS * s)
        n += q - p
    bits = _bits(n, limit)
    # Places for all rows of the table: a row's place is its number, and no two rows can meet.
    direct = (1 << bits) >= limit
    mask = (1 << bits) - 1
    for i in range(0, mask + 1, 2):  # two places, −1 each, in one store
        store_i64(places + 4 * i, -1)
    distinct = 0
    for s in range(field(job, JOB_SOURCE), field(job, JOB_SOURCES)):
        ids = field(sources + 8 * LOOKUP_COLUMNS * s, IDS)
        p, q = _span(sources + 8 * LOOKUP_COLUMNS * s)
        for i in range(p, q):
            row = load_i64(ids + 8 * i)
            # Fibonacci hashing: the highest bits of a product, which depend on all bits of the row.
            j = row if direct else ((row * GOLDEN) >> (64 - bits)) & mask
            if row < 0 or row >= limit:
                return -1
            if row < frozen:
                store_i32(numbers, np.int32(-1))
                numbers += 4
                continue
            number: Any = np.int64(load_i32(places + 4 * j))
            if not direct:
                while number >= 0 and load_i64(rows + 8 * number) != row:
                    j = (j + 1) & mask
                    number = np.int64(load_i32(places + 4 * j))
            if number < 0:
                number = distinct
                distinct += 1
                store_i32(places + 4 * j, np.int32(number))
                store_i64(rows + 8 * number, row)
                store_i64(counts + 8 * number, 1)
            else:
                store_i64(counts + 8 * number, load_i64(counts + 8 * number) + 1)
            store_i32(numbers, np.int32(number))
            numbers += 4
    return distinct


@njit(nogil=True)
def _begin_lists(a: int, number: int, job: int, ends: int, distinct: int) -> None:
    """Turn counts into where each row's list begins, and cut the rows into tasks of about equal work."""
    start, task = field(job, JOB_START), field(job, JOB_TASK)
    cuts = field(a, CUTS)
    at = start
    due = start
    for u in range(distinct):
        count = load_i64(ends + 8 * u)
        store_i64(ends + 8 * u, at)
        # A row with many gradients may pass several of these marks: the tasks after it are then empty.
        if at >= due:
            store_i64(cuts + 8 * task, start + u)
            task += 1
            due += OCCURRENCES_PER_TASK
        at += count
    for rest in range(task, field(job, JOB_TASKS)):
        store_i64(cuts + 8 * rest, start + distinct)
    for task in range(field(job, JOB_TASK), field(job, JOB_TASKS)):
        store_i64(field(a, TASK_JOBS) + 8 * task, number)


@njit(nogil=True)
def _pack(source: int, packed: int, dim: int) -> None:
    """Copy the gradients of a source side by side, for rows that will read each of them several times."""
    vector, stride = field(source, VECTORS), field(source, VECTOR_STRIDE)
    for bag in range(field(source, BAGS)):
        copy(vector + bag * stride, packed + 4 * dim * bag, dim)


@njit(nogil=True, inline="always")
def _place(source, vector, stride, numbers, ends, gradients, coefficients):  # type: ignore[no-untyped-def]
    """Write each occurrence's gradient address into its row's list; returns where the next numbers are.

    `ends` holds where each row's list begins and is left at where it ends. Unless they are 0,
    coefficients are written too: per-id weights, and 1/n for the mean of n ids.
    """
    offsets, weights, mean = field(source, OFFSETS), field(source, ID_WEIGHTS), field(source, MEAN)
    begin = 0 if offsets == 0 else load_i64(offsets)
    for bag in range(field(source, BAGS)):
        end = bag + 1 if offsets == 0 else load_i64(offsets + 8 * (bag + 1))
        for i in range(begin, end):
            number = np.int64(load_i32(numbers))
            numbers += 4
            if number < 0:
                continue
            place = ends + 8 * number
            at = load_i64(place)
            store_i64(place, at + 1)
            store_i64(gradients + 8 * at, vector)
            if coefficients != 0:
                c = simd.load1(weights + 4 * i) if weights != 0 else np.float32(1)
                if mean != 0 and end - begin > 1:
                    c = c * (np.float32(1) / np.float32(end - begin))
                simd.store(coefficients + 4 * at, c)
        begin = end
        vector += stride
    return numbers


@njit(nogil=True)
def _place_plain(source: int, vector: int, stride: int, numbers: int, ends: int, gradients: int) -> int:
    return _place(source, vector, stride, numbers, ends, gradients, 0)


@njit(nogil=True)
def _place_scaled(
    source: int, vector: int, stride: int, numbers: int, ends: int, gradients: int, coefficients: int
) -> int:
    return _place(source, vector, stride, numbers, ends, gradients, coefficients)


@njit(nogil=True)
def _assign_slots(table: int, rows: int, slots: int, distinct: int) -> None:
    """Slots of the distinct rows of a compact table; rows that have none get the next."""
    before = field(table, COUNT)
    # Entries lie anywhere in the index: 16 are on their way from memory while one is looked at.
    for u in range(min(16, distinct)):
        prefetch_entry(table, load_i64(rows + 8 * u))
    for u in range(distinct):
        if u + 16 < distinct:
            prefetch_entry(table, load_i64(rows + 8 * (u + 16)))
        store_i64(slots + 8 * u, find_or_add(table, load_i64(rows + 8 * u)))
    move(table, MIN_MOVES + MOVES_PER_INSERT * (field(table, COUNT) - before))


@njit(nogil=True)
def _refuse(a: int, job: int) -> None:
    """Note that an id of a job is out of range."""
    store_i64(job + 8 * JOB_BAD, 1)
    store_i64(field(a, PLAN_TOTALS) + 8 * ANY_BAD, 1)


@njit(nogil=True)
def _plan_small(a: int, number: int, job: int, table: int, flags: int) -> None:
    """Sum the gradients of a small table, and list its rows with one gradient each."""
    dim, start, sources = field(a, DIM), field(job, JOB_START), field(a, SOURCES)
    sums = field(a, PACKED) + 4 * dim * field(job, JOB_SUMS)
    begin_sums(table, dim, sums, flags)
    for s in range(field(job, JOB_SOURCE), field(job, JOB_SOURCES)):
        if not add_source(sources + 8 * LOOKUP_COLUMNS * s, table, dim, sums, flags):
            _refuse(a, job)
            return
    rows, ends = field(a, ROW_NUMBERS) + 8 * start, field(a, ENDS) + 8 * start
    distinct = list_sums(table, dim, sums, flags, rows, ends, field(a, GRADIENTS) + 8 * start)
    store_i64(job + 8 * JOB_ROWS, distinct)
    _begin_lists(a, number, job, ends, distinct)
    for u in range(distinct):
        store_i64(ends + 8 * u, start + u + 1)


@njit(nogil=True)
def plan_tasks(a: int) -> None:
    """Plan the update of each table."""
    thread = thread_number(a)
    places = field(a, PLACES) + 4 * thread * field(a, PLACE_COLUMNS)
    numbers = field(a, NUMBERS) + 4 * thread * field(a, NUMBER_COLUMNS)
    sources, gradients, dim = field(a, SOURCES), field(a, GRADIENTS), field(a, DIM)
    while True:
        i = next_task(a)
        if i >= field(a, JOB_COUNT):
            return
        job = field(a, JOBS) + 8 * JOB_COLUMNS * i
        table = field(a, TABLES) + 8 * TABLE_COLUMNS * field(job, JOB_TABLE)
        start = field(job, JOB_START)
        rows, ends = field(a, ROW_NUMBERS) + 8 * start, field(a, ENDS) + 8 * start
        if field(job, JOB_ROOM) > 0:
            _plan_small(a, i, job, table, places)
            continue
        frozen, limit = field(table, FROZEN), field(table, ROWS)
        distinct = _number_rows(job, sources, frozen, limit, places, numbers, rows, ends)
        if distinct < 0:
            _refuse(a, job)
            continue
        store_i64(job + 8 * JOB_ROWS, distinct)
        _begin_lists(a, i, job, ends, distinct)
        at = numbers
        pack = field(job, JOB_PACKED) >= 0
        packed = field(a, PACKED) + 4 * dim * field(job, JOB_PACKED)
        for s in range(field(job, JOB_SOURCE), field(job, JOB_SOURCES)):
            source = sources + 8 * LOOKUP_COLUMNS * s
            vector, stride = field(source, VECTORS), field(source, VECTOR_STRIDE)
            if pack:
                _pack(source, packed, dim)
                vector, stride = packed, 4 * dim
                packed += 4 * dim * field(source, BAGS)
            if field(job, JOB_SCALED) != 0:
                at = _place_scaled(source, vector, stride, at, ends, gradients, field(a, COEFFICIENTS))
            else:
                at = _place_plain(source, vector, stride, at, ends, gradients)
        if field(table, INDEX) != 0:
            _assign_slots(table, rows, field(a, SLOTS) + 8 * start, distinct)
