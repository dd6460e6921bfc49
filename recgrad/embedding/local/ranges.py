"""What the kernels of an update are given: ranges of distinct rows, where these lie, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from recgrad.embedding.local.gather import sum_gradients, sum_scaled_gradients, sum_wide
from recgrad.embedding.local.layout import INDEX, STRIDE, TABLE_COLUMNS, WEIGHTS
from recgrad.embedding.local.plan import JOB_COLUMNS, JOB_ROWS, JOB_SCALED, JOB_START, JOB_TABLE
from recgrad.embedding.local.rows import prefetch_row
from recgrad.kernels import simd
from recgrad.kernels.parallel import FIRST, next_task
from recgrad.kernels.simd import field, load1, load_i64

GRADIENT_AHEAD = 16  # occurrences between asking for a gradient and reading it
ROWS_AHEAD = 32  # distinct rows between asking for one and summing its gradients
STAGED_FLOATS = 1024

# Settings of one job, float32: bound of gradients, L2, decoupled weight decay.
LIMIT, L2, DECOUPLED, SETTING_COLUMNS = range(4)

# The kernel's arguments: sizes, then addresses. Hot loops read them once per staged chunk; a
# struct of arrays, passed from function to function, would cost more than the rows.
(
    DIM,
    STATES,  # number of states
    TASKS,  # number of tasks
    OCCURRENCES,
    HYPER_COLUMNS,
    JOBS,  # int64 [jobs, JOB_COLUMNS], as the plan left them
    TABLES,  # int64 [tables, TABLE_COLUMNS]
    PARAMETERS,  # of the initialisers, float64 [tables, 4]
    TASK_JOBS,  # int64, the job of each task
    CUTS,  # int64, the first distinct row of each task
    ROW_NUMBERS,  # int64, of the distinct rows
    SLOTS,  # int64, their slots, where the table is compact
    ENDS,  # int64, where their lists of gradients end
    GRADIENTS,  # int64, addresses
    COEFFICIENTS,  # float32, of each gradient, where a job has them
    SETTINGS,  # float32 [jobs, SETTING_COLUMNS]
    HYPER,  # float32 [jobs, HYPER_COLUMNS], what the rule gets as h
    STEPS,  # int64, the number of this update, by job
    STATE_ADDRESSES,  # int64 [jobs, states], of slot 0
    STATE_STRIDES,  # int64 [jobs, states], bytes from slot to slot
    STATE_INITIALS,  # float32 [jobs, states], of rows that come into being
    STATE_WIDTHS,  # int64 [states]: dim, or 1 for one number a row
    SUMS,  # only for `reduce_tasks`: float32 [occurrences, dim]
    STAGE,  # function `stage`, compiled once for all rules
    UNSTAGE,  # function `unstage`
) = range(FIRST, FIRST + 25)


@njit(nogil=True)
def staged_rows(dim: int) -> int:
    """How many rows are staged at a time."""
    return max(4, min(128, STAGED_FLOATS // dim))


@njit(nogil=True)
def job_field(a: int, job: int, column: int) -> int:
    """A number of a job's line."""
    return load_i64(field(a, JOBS) + 8 * (job * JOB_COLUMNS + column))


@njit(nogil=True)
def slots_of(a: int, job: int) -> int:
    """Where the slots of distinct rows are: those of a plain table are its row numbers."""
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * job_field(a, job, JOB_TABLE)
    return field(a, ROW_NUMBERS) if field(table, INDEX) == 0 else field(a, SLOTS)


@njit(nogil=True)
def next_range(a: int) -> Any:
    """The next task: its job and its range of distinct rows; job −1 when there are no more."""
    tasks, task_jobs, cuts = field(a, TASKS), field(a, TASK_JOBS), field(a, CUTS)
    while True:
        task = next_task(a)
        if task >= tasks:
            return -1, 0, 0
        job = load_i64(task_jobs + 8 * task)
        last = job_field(a, job, JOB_START) + job_field(a, job, JOB_ROWS)
        if task + 1 < tasks and load_i64(task_jobs + 8 * (task + 1)) == job:
            last = load_i64(cuts + 8 * (task + 1))
        first = load_i64(cuts + 8 * task)
        if first < last:
            return job, first, last


@njit(nogil=True)
def _states_apart(a: int, job: int) -> int:
    """How many of the last states do not lie behind the weights."""
    count = field(a, STATES)
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * job_field(a, job, JOB_TABLE)
    for k in range(count):
        if field(field(a, STATE_STRIDES), job * count + k) != field(table, STRIDE):
            return count - k
    return 0


@njit(nogil=True, inline="always")
def _fetch(a, job, slot, weights, stride, apart):  # type: ignore[no-untyped-def]
    """Ask for weights and states of a slot."""
    prefetch_row(weights + slot * stride, stride)
    if apart > 0:
        end = (job + 1) * field(a, STATES)
        for k in range(end - apart, end):
            simd.prefetch(field(field(a, STATE_ADDRESSES), k) + slot * field(field(a, STATE_STRIDES), k))


@njit(nogil=True)
def begin_range(a: int, job: int, first: int, last: int) -> None:
    """Ask for the rows of a task that are staged before others could ask for them."""
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * job_field(a, job, JOB_TABLE)
    weights, stride, apart = field(table, WEIGHTS), field(table, STRIDE), _states_apart(a, job)
    slots = slots_of(a, job)
    for u in range(first, min(first + ROWS_AHEAD, last)):
        _fetch(a, job, field(slots, u), weights, stride, apart)


@njit(nogil=True)
def sum_rows(a: int, job: int, first: int, rows: int, out: int, fetch: bool) -> None:
    """The summed gradients of distinct rows, one after another at address `out`.

    With `fetch`, weights and states of later rows are asked for on the way, so that they are near when they
    are staged, and memory works while rows are computed.
    """
    dim, gradients, ends = field(a, DIM), field(a, GRADIENTS), field(a, ENDS)
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * job_field(a, job, JOB_TABLE)
    weights, stride, slots = field(table, WEIGHTS), field(table, STRIDE), slots_of(a, job)
    apart, final = 0, 0
    if fetch:
        apart, final = _states_apart(a, job), job_field(a, job, JOB_START) + job_field(a, job, JOB_ROWS)
    limit = load1(field(a, SETTINGS) + 4 * (job * SETTING_COLUMNS + LIMIT))
    scaled = job_field(a, job, JOB_SCALED) != 0
    coefficients = field(a, COEFFICIENTS) if scaled else 0
    begin = job_field(a, job, JOB_START)
    if first > begin:
        begin = field(ends, first - 1)
    asked = begin  # gradients up to here are on their way into the cache
    plain = not scaled and limit == np.inf
    for u in range(first, first + rows):
        end = field(ends, u)
        if u + ROWS_AHEAD < final:
            _fetch(a, job, field(slots, u + ROWS_AHEAD), weights, stride, apart)
        stop = min(end + GRADIENT_AHEAD, field(a, OCCURRENCES))
        while asked < stop:
            prefetch_row(field(gradients, asked), 4 * dim)
            asked += 1
        if plain and dim % 16 == 0:
            sum_wide(gradients, begin, end, dim, out)
        elif plain:
            sum_gradients(gradients, begin, end, dim, out)
        else:
            sum_scaled_gradients(gradients, coefficients, limit, begin, end, dim, out)
        out += 4 * dim
        begin = end
