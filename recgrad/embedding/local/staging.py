"""Bringing distinct rows into flat arrays for an optimizer's rule, and writing them back; see update.py.

Most rows are whole vectors with their states behind them, and their gradients are summed as they are. For
these one loop does all that has to be done for a row, so that memory is asked for at an even pace: what is
`ROWS_AHEAD` comes while gradients are added up and weights are copied. Where one loop summed the gradients of
many rows and another copied the rows, memory stood still during the second. All else goes the longer way.

`stage` and `unstage` are compiled once and called by address, so that a new rule compiles in a moment.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

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
from recgrad.embedding.local.gather import sum_wide
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
from recgrad.embedding.local.plan import JOB_ROWS, JOB_START, JOB_TABLE
from recgrad.embedding.local.ranges import (
    DECOUPLED,
    DIM,
    ENDS,
    GRADIENTS,
    L2,
    PARAMETERS,
    ROW_NUMBERS,
    ROWS_AHEAD,
    SETTING_COLUMNS,
    SETTINGS,
    STATE_ADDRESSES,
    STATE_INITIALS,
    STATE_STRIDES,
    STATE_WIDTHS,
    STATES,
    STEPS,
    TABLES,
    ask_for_gradients,
    ask_for_row,
    first_gradient,
    job_field,
    slots_of,
    staged_rows,
    states_apart,
    sum_rows,
    sums_plainly,
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

STAGE_SIGNATURE = types.void(*[types.int64] * 7)  # of `stage` and `unstage`

_FIRST, _SECOND, _STEP = range(3)  # states of rules whose rows catch up


@njit(nogil=True, inline="always")
def _is_wide(a, job, table, dim):  # type: ignore[no-untyped-def]
    """Whether rows are whole vectors of float32, with their states behind them or one number a row."""
    behind = _STEP if field(table, HISTORY) != 0 else field(a, STATES) - states_apart(a, job)
    return dim % 16 == 0 and field(table, KIND) == simd.F32 and field(table, STRIDE) == 4 * dim * (1 + behind)


@njit(nogil=True, inline="always")
def _is_narrow(a, table, dim):  # type: ignore[no-untyped-def]
    """Whether rows are shorter than a vector of float32, with all states behind them, as in WIDE groups."""
    behind = field(table, STRIDE) == 4 * dim * (1 + field(a, STATES))
    return dim < 16 and field(table, KIND) == simd.F32 and field(table, HISTORY) == 0 and behind


@njit(nogil=True)
def stage(a: int, job: int, first: int, rows: int, w: int, g: int, states: int) -> None:
    """Bring gradients, weights and states of `rows` distinct rows into flat arrays at these addresses."""
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * job_field(a, job, JOB_TABLE)
    dim = field(a, DIM)
    wide = _is_wide(a, job, table, dim)
    sums = wide and sums_plainly(a, job)
    if not sums:
        sum_rows(a, job, first, rows, g, True)
    if wide and dim == 16:  # the usual one: as a constant it spares each row some short loops
        new = _stage_wide(a, job, table, first, rows, w, g, states, 16, sums)
    elif wide:
        new = _stage_wide(a, job, table, first, rows, w, g, states, dim, sums)
    else:
        new = _stage_any(a, job, table, first, rows, w, states)
    # A compact table counts slots when it hands them out; of a plain one, tasks count the rows that are new.
    if new > 0 and field(table, INDEX) == 0:
        simd.fetch_add(table + 8 * COUNT, new)
    _decay(a, job, rows * dim, w, g)


@njit(nogil=True, inline="always")
def _stage_wide(a, job, table, first, rows, w, g, states, dim, sums):  # type: ignore[no-untyped-def]
    """As `stage`, of rows that are whole vectors and lie with their states; returns how many are new.

    With `sums`, their gradients are added up on the way.
    """
    gradients, ends, slots = field(a, GRADIENTS), field(a, ENDS), slots_of(a, job)
    weights, stride, apart = field(table, WEIGHTS), field(table, STRIDE), states_apart(a, job)
    final = job_field(a, job, JOB_START) + job_field(a, job, JOB_ROWS)
    begin, new = first_gradient(a, job, first), 0
    pitch, size = 4 * staged_rows(dim) * dim, 4 * dim
    catches_up, updates = field(table, HISTORY) != 0, field(field(a, STEPS), job) - 1
    entries = powers = 0
    if catches_up:
        entries, powers, apart = entries_of(table), powers_of(table), 0
    behind = field(a, STATES) - apart
    for u in range(first, first + rows):
        if sums:
            end = field(ends, u)
            if u + ROWS_AHEAD < final:
                ask_for_row(a, job, field(slots, u + ROWS_AHEAD), weights, stride, apart)
            ask_for_gradients(a, begin, end, dim)
            sum_wide(gradients, begin, end, dim, g)
            begin = end
        r, slot = u - first, field(slots, u)
        row, state = weights + slot * stride, states + size * r
        if untouched(row, simd.F32):
            new += 1
            _begin(a, job, u, r, w, states)
        elif catches_up:
            catch_up_wide(row, w, state, state + pitch, dim, entries, powers, updates)
        else:
            copy_wide(row, w, dim)
            for k in range(behind):
                copy_wide(row + (k + 1) * size, state + k * pitch, dim)
            for k in range(behind, behind + apart):
                simd.store(states + k * pitch + 4 * r, load1(_number_apart(a, job, k, slot)))
        w += size
        g += size
    return new


@njit(nogil=True, inline="always")
def _number_apart(a, job, k, slot):  # type: ignore[no-untyped-def]
    """Where the one number is that a slot has of state k."""
    at = job * field(a, STATES) + k
    return field(field(a, STATE_ADDRESSES), at) + slot * field(field(a, STATE_STRIDES), at)


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
def _stage_any(a: int, job: int, table: int, first: int, rows: int, w: int, states: int) -> int:
    """Bring weights and states of any rows to these addresses; returns how many rows are new."""
    dim, slots, count = field(a, DIM), slots_of(a, job), field(a, STATES)
    weights, stride, kind = field(table, WEIGHTS), field(table, STRIDE), field(table, KIND)
    pitch, size, catches_up = 4 * staged_rows(dim) * dim, 4 * dim, field(table, HISTORY) != 0
    narrow = _is_narrow(a, table, dim)
    new = 0
    for r in range(rows):
        slot = field(slots, first + r)
        row, target, state = weights + slot * stride, w + r * size, states + r * size
        if untouched(row, kind):
            new += 1
            _begin(a, job, first + r, r, target, states)
        elif narrow:
            _copy_narrow(row, target, dim)
            for k in range(count):
                _copy_narrow(row + (k + 1) * size, state + k * pitch, dim)
        elif catches_up:
            _catch_up(a, job, slot, row, r, target, states)
        else:
            read(row, kind, target, dim)
            _copy_states(a, job, slot, r, states, True)
    return new


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
    table = field(a, TABLES) + 8 * TABLE_COLUMNS * job_field(a, job, JOB_TABLE)
    dim, slots, changed = field(a, DIM), slots_of(a, job), field(table, CHANGED)
    if changed != 0:
        for u in range(first, first + rows):
            simd.store_u8(changed + field(slots, u), np.uint8(1))
    wide = _is_wide(a, job, table, dim)
    if wide and dim == 16:
        _unstage_wide(a, job, table, first, rows, w, states, 16)
    elif wide:
        _unstage_wide(a, job, table, first, rows, w, states, dim)
    else:
        _unstage_any(a, job, table, first, rows, w, states)


@njit(nogil=True, inline="always")
def _unstage_wide(a, job, table, first, rows, w, states, dim):  # type: ignore[no-untyped-def]
    """As `unstage`, of rows that are whole vectors and lie with their states."""
    slots, apart = slots_of(a, job), states_apart(a, job)
    weights, stride = field(table, WEIGHTS), field(table, STRIDE)
    pitch, size = 4 * staged_rows(dim) * dim, 4 * dim
    catches_up, step = field(table, HISTORY) != 0, np.int32(field(field(a, STEPS), job))
    behind = field(a, STATES) - apart
    for u in range(first, first + rows):
        r, slot = u - first, field(slots, u)
        row, state = weights + slot * stride, states + size * r
        if catches_up:
            store_wide(row, w, state, state + pitch, dim, step)
        else:
            copy_wide(w, row, dim)
            mark_written(row)
            for k in range(behind):
                copy_wide(state + k * pitch, row + (k + 1) * size, dim)
            for k in range(behind, behind + apart):
                simd.store(_number_apart(a, job, k, slot), load1(states + k * pitch + 4 * r))
        w += size


@njit(nogil=True)
def _unstage_any(a: int, job: int, table: int, first: int, rows: int, w: int, states: int) -> None:
    """As `unstage`, of any rows."""
    dim, slots, count = field(a, DIM), slots_of(a, job), field(a, STATES)
    weights, stride = field(table, WEIGHTS), field(table, STRIDE)
    pitch, size = 4 * staged_rows(dim) * dim, 4 * dim
    catches_up, step = field(table, HISTORY) != 0, np.int32(field(field(a, STEPS), job))
    narrow = _is_narrow(a, table, dim)
    for r in range(rows):
        slot = field(slots, first + r)
        row, source, state = weights + slot * stride, w + r * size, states + r * size
        if narrow:
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
