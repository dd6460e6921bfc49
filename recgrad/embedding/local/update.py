"""The update kernel: sums each row's gradients and applies an optimizer's rule, in one pass.

A task is a range of distinct rows of one table, as the plan has cut them. Each row has one owner, so
nothing is atomic. For `staged_rows` rows at a time:

    memory, anywhere                     stage ──▶      on the stack of the thread, in the L1 cache
    gradients of row 0: g0 + g2 + g5                    g       [row 0 | row 1 | … ]   rows · dim, flat
    weights   slot of row 0, slot of row 1 …            w       [row 0 | row 1 | … ]
    state k   slot of row 0, slot of row 1 …            states  [row 0 | row 1 | … ]   one line a state
                                                             │
                                                        rule(w, g, states, rows, dim, h): one long loop over
                                                        rows · dim, which the compiler turns into vector code
    weights, states                      ◀── unstage         │

Why staged: rows lie scattered, each shorter than what vector code needs to be fast, and in several types; a
rule sees neither. What is asked for early (prefetch) arrives while earlier rows are summed. A row that is
new is drawn from its initialiser in `stage`; a row that has missed updates (HISTORY) is brought up to date
there; weight decay that is not the rule's own is applied there as well.

`stage` and `unstage` are compiled once and called by address, so that a new rule compiles in a moment; a rule
itself is inlined into `update_function`'s kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types

from recgrad.embedding.local.catch_up import (
    ENTRY,
    catch_up,
    catch_up_wide,
    entries_of,
    last_of,
    powers_of,
    square_left,
    store_direction,
    store_wide,
)
from recgrad.embedding.local.gather import sum_gradients, sum_scaled_gradients, sum_wide
from recgrad.embedding.local.initializer import mix, row_stream
from recgrad.embedding.local.layout import (
    CHANGED,
    COUNT,
    DIRECTION,
    HISTORY,
    INDEX,
    KEY,
    KEYS,
    KIND,
    STRIDE,
    TABLE_COLUMNS,
    WEIGHTS,
)
from recgrad.embedding.local.plan import (
    JOB_COLUMNS,
    JOB_ROWS,
    JOB_SCALED,
    JOB_START,
    JOB_TABLE,
)
from recgrad.embedding.local.rows import (
    copy,
    copy_wide,
    generate,
    key_of,
    mark_written,
    prefetch_row,
    read,
    untouched,
    write,
)
from recgrad.kernels import simd
from recgrad.kernels.parallel import FIRST, next_task
from recgrad.kernels.simd import field, load1, load_i64

GRADIENT_AHEAD = 16  # occurrences between asking for a gradient and reading it
ROWS_AHEAD = 32  # distinct rows between asking for one and summing its gradients
STAGED_FLOATS = 1024

_FIRST, _SECOND, _STEP = range(3)  # states of rules whose rows catch up

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
def _job(a: int, job: int, column: int) -> int:
    return load_i64(field(a, JOBS) + 8 * (job * JOB_COLUMNS + column))


@njit(nogil=True)
def _slots(a: int, job: int) -> int:
    """Where the slots of distinct rows are: those of a plain table are its row numbers."""
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * _job(a, job, JOB_TABLE)
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
        last = _job(a, job, JOB_START) + _job(a, job, JOB_ROWS)
        if task + 1 < tasks and load_i64(task_jobs + 8 * (task + 1)) == job:
            last = load_i64(cuts + 8 * (task + 1))
        first = load_i64(cuts + 8 * task)
        if first < last:
            return job, first, last


@njit(nogil=True)
def _states_apart(a: int, job: int) -> int:
    """How many of the last states do not lie behind the weights."""
    count = field(a, STATES)
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * _job(a, job, JOB_TABLE)
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
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * _job(a, job, JOB_TABLE)
    weights, stride, apart = field(table, WEIGHTS), field(table, STRIDE), _states_apart(a, job)
    slots = _slots(a, job)
    for u in range(first, min(first + ROWS_AHEAD, last)):
        _fetch(a, job, field(slots, u), weights, stride, apart)


@njit(nogil=True)
def _sum_rows(a: int, job: int, first: int, rows: int, out: int, fetch: bool) -> None:
    """The summed gradients of distinct rows, one after another at address `out`.

    With `fetch`, weights and states of later rows are asked for on the way, so that they are near when they
    are staged, and memory works while rows are computed.
    """
    dim, gradients, ends = field(a, DIM), field(a, GRADIENTS), field(a, ENDS)
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * _job(a, job, JOB_TABLE)
    weights, stride, slots = field(table, WEIGHTS), field(table, STRIDE), _slots(a, job)
    apart, final = 0, 0
    if fetch:
        apart, final = _states_apart(a, job), _job(a, job, JOB_START) + _job(a, job, JOB_ROWS)
    limit = load1(field(a, SETTINGS) + 4 * (job * SETTING_COLUMNS + LIMIT))
    scaled = _job(a, job, JOB_SCALED) != 0
    coefficients = field(a, COEFFICIENTS) if scaled else 0
    begin = _job(a, job, JOB_START)
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


# `stage` and `unstage` are the same for all rules: compiled apart, so that a rule compiles fast.
STAGE_SIGNATURE = types.void(*[types.int64] * 7)


@njit(nogil=True, inline="always")
def _side_by_side(dim: int, kind: int, stride: int, count: int) -> bool:
    """Whether rows are whole vectors and lie together with `count` states, the usual case."""
    return kind == simd.F32 and dim % 16 == 0 and stride == 4 * dim * (1 + count)


@njit(nogil=True)
def stage(a: int, job: int, first: int, rows: int, w: int, g: int, states: int) -> None:
    """Bring gradients, weights and states of `rows` distinct rows into flat arrays at these addresses."""
    dim, slots, count = field(a, DIM), _slots(a, job), field(a, STATES)
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * _job(a, job, JOB_TABLE)
    weights, stride, kind = field(table, WEIGHTS), field(table, STRIDE), field(table, KIND)
    _sum_rows(a, job, first, rows, g, True)
    pitch, size = 4 * staged_rows(dim) * dim, 4 * dim
    catches_up, updates = field(table, HISTORY) != 0, field(field(a, STEPS), job) - 1
    entries = powers = 0
    if catches_up:
        entries, powers = entries_of(table), powers_of(table)
    together = _side_by_side(dim, kind, stride, _STEP if catches_up else count)
    new = 0
    for r in range(rows):
        slot = field(slots, first + r)
        row, target, state = weights + slot * stride, w + r * size, states + r * size
        if untouched(row, kind):
            new += 1
            _begin(a, job, first + r, r, target, states)
        elif together and catches_up:
            catch_up_wide(row, target, state, state + pitch, dim, entries, powers, updates)
        elif together:
            copy_wide(row, target, dim)
            for k in range(count):
                copy_wide(row + (k + 1) * size, state + k * pitch, dim)
        elif catches_up:
            _catch_up(a, job, slot, row, r, target, states)
        else:
            read(row, kind, target, dim)
            _copy_states(a, job, slot, r, states, True)
    # A compact table counts slots when it hands them out; of a plain one, tasks count the rows that are new.
    if new > 0 and field(table, INDEX) == 0:
        simd.fetch_add(table + 8 * COUNT, new)
    _decay(a, job, rows * dim, w, g)


@njit(nogil=True)
def _copy_states(a: int, job: int, slot: int, r: int, states: int, into_stage: bool) -> None:
    """Copy the states of one row into the stage or back; of one that catches up, only v."""
    dim, count, widths = field(a, DIM), field(a, STATES), field(a, STATE_WIDTHS)
    places = field(a, STATE_ADDRESSES) + 8 * job * max(count, 1)
    strides = field(a, STATE_STRIDES) + 8 * job * max(count, 1)
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * _job(a, job, JOB_TABLE)
    begin, end = (_SECOND, _STEP) if field(table, HISTORY) != 0 else (0, count)
    for k in range(begin, end):
        width = field(widths, k)
        stored = field(places, k) + slot * field(strides, k)
        staged = states + 4 * (k * staged_rows(dim) * dim + r * width)
        if into_stage:
            copy(stored, staged, width)
        else:
            copy(staged, stored, width)


@njit(nogil=True)
def _begin(a: int, job: int, u: int, r: int, target: int, states: int) -> None:
    """Stage a row that comes into being."""
    t, dim, count = _job(a, job, JOB_TABLE), field(a, DIM), field(a, STATES)
    row = field(field(a, ROW_NUMBERS), u)
    generate(field(a, TABLES) + 8 * TABLE_COLUMNS * t, field(a, PARAMETERS) + 32 * t, row, target, dim)
    for k in range(count):
        width = field(field(a, STATE_WIDTHS), k)
        initial = load1(field(a, STATE_INITIALS) + 4 * (job * count + k))
        for d in range(width):
            simd.store(states + 4 * (k * staged_rows(dim) * dim + r * width + d), initial)


@njit(nogil=True)
def _catch_up(a: int, job: int, slot: int, row: int, r: int, target: int, states: int) -> None:
    """Stage a row as it is before this update: its weights, m and v."""
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * _job(a, job, JOB_TABLE)
    dim, width, kind = field(a, DIM), field(field(a, STATE_WIDTHS), _SECOND), field(table, KIND)
    pitch = 4 * staged_rows(dim) * dim
    second = 8 * (job * field(a, STATES) + _SECOND)
    direction = row + field(table, DIRECTION)
    last = last_of(direction, dim)
    weights = row
    if kind != simd.F32:
        read(row, kind, target, dim)
        weights = target
    square = load_i64(field(a, STATE_ADDRESSES) + second) + slot * load_i64(field(a, STATE_STRIDES) + second)
    to = target, states + _FIRST * pitch + 4 * r * dim, states + _SECOND * pitch + 4 * r * width
    left = square_left(powers_of(table), max(field(field(a, STEPS), job) - 1 - last, 0))
    catch_up(weights, direction, square, to, dim, width, left, entries_of(table) + ENTRY * last)


@njit(nogil=True)
def _decay(a: int, job: int, size: int, w: int, g: int) -> None:
    """Weight decay that is not the rule's own."""
    settings = field(a, SETTINGS) + 4 * job * SETTING_COLUMNS
    l2, decoupled = load1(settings + 4 * L2), load1(settings + 4 * DECOUPLED)
    if l2 != 0:
        for i in range(size):
            simd.store(g + 4 * i, load1(g + 4 * i) + l2 * load1(w + 4 * i))
    if decoupled != 0:
        for i in range(size):
            simd.store(w + 4 * i, load1(w + 4 * i) - decoupled * load1(w + 4 * i))


@njit(nogil=True)
def unstage(a: int, job: int, first: int, rows: int, w: int, g: int, states: int) -> None:
    """Write weights and states back."""
    dim, slots, count = field(a, DIM), _slots(a, job), field(a, STATES)
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * _job(a, job, JOB_TABLE)
    weights, stride, kind = field(table, WEIGHTS), field(table, STRIDE), field(table, KIND)
    pitch, size = 4 * staged_rows(dim) * dim, 4 * dim
    catches_up, step = field(table, HISTORY) != 0, np.int32(field(field(a, STEPS), job))
    together = _side_by_side(dim, kind, stride, _STEP if catches_up else count)
    changed = field(table, CHANGED)
    for r in range(rows):
        slot = field(slots, first + r)
        row, source, state = weights + slot * stride, w + r * size, states + r * size
        if changed != 0:
            simd.store_u8(changed + slot, np.uint8(1))
        if together and catches_up:
            store_wide(row, source, state, state + pitch, dim, step)
        elif together:
            copy_wide(source, row, dim)
            mark_written(row)
            for k in range(count):
                copy_wide(state + k * pitch, row + (k + 1) * size, dim)
        else:
            _write_row(a, job, first + r, row, source)
            if catches_up:
                store_direction(state, row + field(table, DIRECTION), dim, step)
            _copy_states(a, job, slot, r, states, False)


@njit(nogil=True)
def _write_row(a: int, job: int, u: int, row: int, source: int) -> None:
    """Store the weights of a distinct row at its address."""
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * _job(a, job, JOB_TABLE)
    # Short types round at random, by (table, update, row): the same for any number of threads.
    key = field(table, KEY) + field(field(a, STEPS), job)
    number = field(field(a, ROW_NUMBERS), u)
    if field(table, KEYS) != 0:
        number = key_of(table, number)
    write(source, row, field(table, KIND), field(a, DIM), row_stream(mix(key), number))


@njit(nogil=True)
def reduce_tasks(a: int) -> None:
    """Only sum: the gradient of each distinct row, at the row's place in an array of [occurrences, dim]."""
    while True:
        job, first, last = next_range(a)
        if job < 0:
            return
        _sum_rows(a, job, first, last - first, field(a, SUMS) + 4 * first * field(a, DIM), False)


def update_function(rule: Any) -> Any:
    """The update with an optimizer's rule in it, still to be compiled."""

    def kernel(a: int) -> None:
        dim = field(a, DIM)
        most = staged_rows(dim)
        w = np.empty(most * dim, np.float32)
        g = np.empty(most * dim, np.float32)
        states = np.empty((max(field(a, STATES), 1), most * dim), np.float32)
        at_w, at_g, at_states = simd.address(w), simd.address(g), simd.address(states)
        columns = field(a, HYPER_COLUMNS)
        while True:
            job, first, last = next_range(a)
            if job < 0:
                return
            begin_range(a, job, first, last)
            h = carray(simd.pointer(field(a, HYPER) + 4 * job * columns), columns, np.float32)
            while first < last:
                rows = min(most, last - first)
                simd.call(field(a, STAGE), a, job, first, rows, at_w, at_g, at_states)
                rule(w, g, states, rows, dim, h)
                simd.call(field(a, UNSTAGE), a, job, first, rows, at_w, at_g, at_states)
                first += rows

    return kernel
