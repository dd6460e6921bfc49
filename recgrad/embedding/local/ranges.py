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

GRADIENTS_AHEAD = 20  # occurrences between asking for a gradient and reading it
ROWS_AHEAD = 12  # distinct rows between asking for one and summing its gradients
STAGED_FLOATS = 128

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
def states_apart(a: int, job: int) -> int:
    """How many of the last states do not lie behind the weights."""
    count = field(a, STATES)
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * job_field(a, job, JOB_TABLE)
    for k in range(count):
        if field(field(a, STATE_STRIDES), job * count + k) != field(table, STRIDE):
            return count - k
    return 0


@njit(nogil=True, inline="always")
def ask_for_row(a, job, slot, weights, stride, apart):  # type: ignore[no-untyped-def]
    """Ask for weights and states of a slot, to write them.

    Lookups have left copies of a row with several cores. What is asked for to be read would leave them there,
    and each store would wait until the others have dropped theirs, one after another.
    """
    row = weights + slot * stride
    simd.prefetch_to_write(row)
    for line in range(64, stride, 64):
        simd.prefetch_to_write(row + line)
    if apart > 0:
        end = (job + 1) * field(a, STATES)
        for k in range(end - apart, end):
            at = field(field(a, STATE_ADDRESSES), k) + slot * field(field(a, STATE_STRIDES), k)
            simd.prefetch_to_write(at)


@njit(nogil=True)
def begin_range(a: int, job: int, first: int, last: int, fetch: bool) -> None:
    """Ask for the first gradients of a task, with `fetch` also for its first rows; others come later."""
    dim, begin = field(a, DIM), first_gradient(a, job, first)
    for i in range(begin, min(begin + GRADIENTS_AHEAD, field(a, OCCURRENCES))):
        prefetch_row(field(field(a, GRADIENTS), i), 4 * dim)
    if fetch:
        table = field(a, TABLES) + 8 * TABLE_COLUMNS * job_field(a, job, JOB_TABLE)
        weights, stride, apart = field(table, WEIGHTS), field(table, STRIDE), states_apart(a, job)
        slots = slots_of(a, job)
        for u in range(first, min(first + ROWS_AHEAD, last)):
            ask_for_row(a, job, field(slots, u), weights, stride, apart)


@njit(nogil=True, inline="always")
def first_gradient(a, job, row):  # type: ignore[no-untyped-def]
    """Where the list of gradients of a distinct row begins."""
    start = job_field(a, job, JOB_START)
    return field(field(a, ENDS), row - 1) if row > start else start


@njit(nogil=True, inline="always")
def ask_for_gradients(a, begin, end, dim):  # type: ignore[no-untyped-def]
    """Ask for as many gradients as a row has, those that come GRADIENTS_AHEAD after them."""
    gradients = field(a, GRADIENTS)
    for i in range(begin + GRADIENTS_AHEAD, min(end + GRADIENTS_AHEAD, field(a, OCCURRENCES))):
        prefetch_row(field(gradients, i), 4 * dim)


@njit(nogil=True, inline="always")
def _limit(a, job):  # type: ignore[no-untyped-def]
    return load1(field(a, SETTINGS) + 4 * (job * SETTING_COLUMNS + LIMIT))


@njit(nogil=True, inline="always")
def sums_plainly(a, job):  # type: ignore[no-untyped-def]
    """Whether gradients are added up as they are, without coefficients or a limit."""
    return job_field(a, job, JOB_SCALED) == 0 and _limit(a, job) == np.inf


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
        apart, final = states_apart(a, job), job_field(a, job, JOB_START) + job_field(a, job, JOB_ROWS)
    coefficients = field(a, COEFFICIENTS) if job_field(a, job, JOB_SCALED) != 0 else 0
    plain, limit = sums_plainly(a, job), _limit(a, job)
    begin = first_gradient(a, job, first)
    for u in range(first, first + rows):
        end = field(ends, u)
        if u + ROWS_AHEAD < final:
            ask_for_row(a, job, field(slots, u + ROWS_AHEAD), weights, stride, apart)
        ask_for_gradients(a, begin, end, dim)
        if plain and dim % 16 == 0:
            sum_wide(gradients, begin, end, dim, out)
        elif plain:
            sum_gradients(gradients, begin, end, dim, out)
        else:
            sum_scaled_gradients(gradients, coefficients, limit, begin, end, dim, out)
        out += 4 * dim
        begin = end
