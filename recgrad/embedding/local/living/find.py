"""From the keys of a batch to rows, on all cores; keys without a row are counted after that.

A job is the ids of one lookup, a task a piece of them. Occurrences are counted by atomic additions, and the
last pass is the same for all, so that nothing depends on which thread comes first.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from recgrad.embedding.local.initializer import mix
from recgrad.embedding.local.living.index import find, find_from, home_near, prefetch_key
from recgrad.embedding.local.living.layout import (
    COUNTS,
    ENTRIES,
    META,
    MISSES,
    PENDING,
    REFUSED,
    REFUSED_ROWS,
    ROUND,
    SIZE,
    STEP,
    UNKNOWN,
    UNKNOWN_ROWS,
    ZCH,
)
from recgrad.embedding.local.living.window import note_misses
from recgrad.kernels import simd
from recgrad.kernels.parallel import FIRST, next_task
from recgrad.kernels.simd import fetch_add, field, load_i64, prefetch, prefetch_to_write, store_i64

IDS_PER_TASK = 4096
AHEAD = 32  # ids between asking for an entry of the index and reading it
MARKS_AHEAD = 8  # ids between asking for a row's marks and writing them

# A job: ids of one lookup.
JOB_LINE, JOB_KEYS, JOB_ROWS, JOB_COUNT, JOB_COLUMNS = range(5)

# Arguments of `find_tasks`, `note_tasks` and `rest_tasks`.
JOBS, JOB_NUMBER, TASKS, TASK_COUNT, TRAINING, TABLE_LINES = range(FIRST, FIRST + 6)


@njit(nogil=True)
def stand_in(line: int, key: int, training: bool) -> int:
    """The row that a key without one reads."""
    first, rows = field(line, UNKNOWN), field(line, UNKNOWN_ROWS)
    if training:
        first, rows = field(line, REFUSED), field(line, REFUSED_ROWS)
    if rows == 1:
        return first
    return first + (((mix(key) >> 32) & 0xFFFFFFFF) * rows >> 32)


@njit(nogil=True)
def _mark(line: int, row: int, step: int, counts: bool) -> None:
    """Note that a row's key was seen."""
    at = field(line, META) + 16 * row + 8
    if field(line, PENDING) != 0:
        at = field(line, PENDING) + 8 * row
    if counts:
        fetch_add(at, 1)
    if simd.load_i32(at + 4) != step:
        simd.store_i32(at + 4, np.int32(step))


@njit(nogil=True)
def _find_and_mark(line: int, keys: int, rows: int, first: int, last: int) -> int:
    """Rows of keys, −1 for those without, and marks on them; returns how many have none.

    As in `find_tasks`, a place of `rows` first has the home of its key.
    """
    step, counts, misses = field(line, STEP), field(line, COUNTS) != 0, 0
    meta = field(line, META)
    if field(line, PENDING) != 0:
        meta = field(line, PENDING)
    width = 8 if field(line, PENDING) != 0 else 16
    entries, size = field(line, ENTRIES), field(line, SIZE)
    begin = first
    while begin < last:  # in blocks, so that marks are on their way while rows are found
        end = min(begin + 64, last)
        for i in range(begin, end):
            if i + AHEAD < last:
                j = home_near(entries, size, load_i64(keys + 8 * (i + AHEAD)))
                store_i64(rows + 8 * (i + AHEAD), j)
            row = find_from(line, entries, size, load_i64(keys + 8 * i), load_i64(rows + 8 * i))
            store_i64(rows + 8 * i, row)
            if row >= 0:
                prefetch_to_write(meta + width * row)
        for i in range(begin, end):
            row = load_i64(rows + 8 * i)
            if row >= 0:
                _mark(line, row, step, counts)
            else:
                misses += 1
        begin = end
    return misses


@njit(nogil=True)
def find_tasks(a: int) -> None:
    """Rows of all keys. In training those with a row are marked and others are −1, else stand-ins."""
    while True:
        task = next_task(a)
        if task >= field(a, TASK_COUNT):
            return
        piece = field(a, TASKS) + 24 * task
        job = field(a, JOBS) + 8 * JOB_COLUMNS * field(piece, 0)
        line, keys, rows = field(job, JOB_LINE), field(job, JOB_KEYS), field(job, JOB_ROWS)
        first, last = field(piece, 1), field(piece, 2)
        entries, size = field(line, ENTRIES), field(line, SIZE)
        for i in range(first, min(first + AHEAD, last)):
            store_i64(rows + 8 * i, home_near(entries, size, load_i64(keys + 8 * i)))
        if field(a, TRAINING) != 0:
            misses = _find_and_mark(line, keys, rows, first, last)
            if misses > 0:
                fetch_add(line + 8 * MISSES, misses)
            continue
        for i in range(first, last):
            if i + AHEAD < last:
                j = home_near(entries, size, load_i64(keys + 8 * (i + AHEAD)))
                store_i64(rows + 8 * (i + AHEAD), j)
            key = load_i64(keys + 8 * i)
            row = find_from(line, entries, size, key, load_i64(rows + 8 * i))
            store_i64(rows + 8 * i, row if row >= 0 else stand_in(line, key, False))


@njit(nogil=True)
def note_tasks(a: int) -> None:
    """Count keys without a row in the windows; a task is a table, whose jobs lie together."""
    while True:
        task = next_task(a)
        if task >= field(a, TASK_COUNT):
            return
        line = field(field(a, TABLE_LINES), task)
        if field(line, MISSES) == 0:
            continue
        for j in range(field(a, JOB_NUMBER)):
            job = field(a, JOBS) + 8 * JOB_COLUMNS * j
            if field(job, JOB_LINE) == line:
                note_misses(line, field(job, JOB_KEYS), field(job, JOB_ROWS), field(job, JOB_COUNT))


@njit(nogil=True)
def rest_tasks(a: int) -> None:
    """Rows of keys that had none; where there was a round, also of those whose rows are others' by now."""
    while True:
        task = next_task(a)
        if task >= field(a, TASK_COUNT):
            return
        piece = field(a, TASKS) + 24 * task
        job = field(a, JOBS) + 8 * JOB_COLUMNS * field(piece, 0)
        line, keys, rows = field(job, JOB_LINE), field(job, JOB_KEYS), field(job, JOB_ROWS)
        first, last = field(piece, 1), field(piece, 2)
        if field(line, ROUND) != 0 and field(line, ZCH) != 0:
            _forget_others(field(line, META), keys, rows, first, last)
        for i in range(first, last):
            if i + AHEAD < last and load_i64(rows + 8 * (i + AHEAD)) < 0:
                prefetch_key(line, load_i64(keys + 8 * (i + AHEAD)))
            if load_i64(rows + 8 * i) < 0:
                key = load_i64(keys + 8 * i)
                row = find(line, key)
                store_i64(rows + 8 * i, row if row >= 0 else stand_in(line, key, True))


@njit(nogil=True)
def _forget_others(meta: int, keys: int, rows: int, first: int, last: int) -> None:
    """Set rows that belong to other keys by now to −1."""
    for i in range(first, last):
        if i + MARKS_AHEAD < last and load_i64(rows + 8 * (i + MARKS_AHEAD)) >= 0:
            prefetch(meta + 16 * load_i64(rows + 8 * (i + MARKS_AHEAD)))
        row = load_i64(rows + 8 * i)
        if row >= 0 and load_i64(meta + 16 * row) != load_i64(keys + 8 * i):
            store_i64(rows + 8 * i, -1)
