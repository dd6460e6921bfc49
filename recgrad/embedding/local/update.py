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
from recgrad.embedding.local.plan import JOB_TABLE
from recgrad.embedding.local.ranges import (
    DECOUPLED,
    DIM,
    HYPER,
    HYPER_COLUMNS,
    L2,
    PARAMETERS,
    ROW_NUMBERS,
    SETTING_COLUMNS,
    SETTINGS,
    STAGE,
    STATE_ADDRESSES,
    STATE_INITIALS,
    STATE_STRIDES,
    STATE_WIDTHS,
    STATES,
    STEPS,
    SUMS,
    TABLES,
    UNSTAGE,
    begin_range,
    job_field,
    next_range,
    slots_of,
    staged_rows,
    sum_rows,
)
from recgrad.embedding.local.rows import (
    copy,
    copy_wide,
    generate,
    key_of,
    mark_written,
    read,
    untouched,
    write,
)
from recgrad.kernels import simd
from recgrad.kernels.simd import field, load1, load_i64

_FIRST, _SECOND, _STEP = range(3)  # states of rules whose rows catch up

# `stage` and `unstage` are the same for all rules: compiled apart, so that a rule compiles fast.
STAGE_SIGNATURE = types.void(*[types.int64] * 7)


@njit(nogil=True, inline="always")
def _side_by_side(dim: int, kind: int, stride: int, count: int) -> bool:
    """Whether rows are whole vectors and lie together with `count` states, the usual case."""
    return kind == simd.F32 and dim % 16 == 0 and stride == 4 * dim * (1 + count)


@njit(nogil=True, inline="always")
def _narrow(dim: int, kind: int, stride: int, count: int) -> bool:
    """Whether rows are shorter than a vector and lie with `count` states, as those of WIDE groups do."""
    return kind == simd.F32 and dim < 16 and stride == 4 * dim * (1 + count)


@njit(nogil=True, inline="always")
def _copy_narrow(source, target, dim):  # type: ignore[no-untyped-def]
    """As `copy`, part of its caller's loop."""
    d = 0
    while d + 4 <= dim:
        simd.store(target + 4 * d, simd.load(simd.zeros4(), source + 4 * d))
        d += 4
    while d < dim:
        simd.store(target + 4 * d, load1(source + 4 * d))
        d += 1


@njit(nogil=True)
def stage(a: int, job: int, first: int, rows: int, w: int, g: int, states: int) -> None:
    """Bring gradients, weights and states of `rows` distinct rows into flat arrays at these addresses."""
    dim, slots, count = field(a, DIM), slots_of(a, job), field(a, STATES)
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * job_field(a, job, JOB_TABLE)
    weights, stride, kind = field(table, WEIGHTS), field(table, STRIDE), field(table, KIND)
    sum_rows(a, job, first, rows, g, True)
    pitch, size = 4 * staged_rows(dim) * dim, 4 * dim
    catches_up, updates = field(table, HISTORY) != 0, field(field(a, STEPS), job) - 1
    entries = powers = 0
    if catches_up:
        entries, powers = entries_of(table), powers_of(table)
    together = _side_by_side(dim, kind, stride, _STEP if catches_up else count)
    narrow = not catches_up and _narrow(dim, kind, stride, count)
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
        elif narrow:
            _copy_narrow(row, target, dim)
            for k in range(count):
                _copy_narrow(row + (k + 1) * size, state + k * pitch, dim)
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
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * job_field(a, job, JOB_TABLE)
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
    t, dim, count = job_field(a, job, JOB_TABLE), field(a, DIM), field(a, STATES)
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
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * job_field(a, job, JOB_TABLE)
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
    dim, slots, count = field(a, DIM), slots_of(a, job), field(a, STATES)
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * job_field(a, job, JOB_TABLE)
    weights, stride, kind = field(table, WEIGHTS), field(table, STRIDE), field(table, KIND)
    pitch, size = 4 * staged_rows(dim) * dim, 4 * dim
    catches_up, step = field(table, HISTORY) != 0, np.int32(field(field(a, STEPS), job))
    together = _side_by_side(dim, kind, stride, _STEP if catches_up else count)
    narrow = not catches_up and _narrow(dim, kind, stride, count)
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
        elif narrow:
            _copy_narrow(source, row, dim)
            mark_written(row)
            for k in range(count):
                _copy_narrow(state + k * pitch, row + (k + 1) * size, dim)
        else:
            _write_row(a, job, first + r, row, source)
            if catches_up:
                store_direction(state, row + field(table, DIRECTION), dim, step)
            _copy_states(a, job, slot, r, states, False)


@njit(nogil=True)
def _write_row(a: int, job: int, u: int, row: int, source: int) -> None:
    """Store the weights of a distinct row at its address."""
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * job_field(a, job, JOB_TABLE)
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
        sum_rows(a, job, first, last - first, field(a, SUMS) + 4 * first * field(a, DIM), False)


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
