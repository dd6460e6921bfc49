"""Rows that no batch touched for some updates, brought up to date where they are read; see `history.py`.

A lookup and the next update compute the same from the same numbers, bit for bit, and a lookup writes
nothing: how often a row is read changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from recgrad.embedding.local.layout import DIRECTION, HISTORY
from recgrad.embedding.local.rows import ZERO, copy, copy_wide, mark_written
from recgrad.kernels import simd
from recgrad.kernels.simd import field, load1, load_f64, load_i32

# As in recgrad/optim/sparse/history.py, in bytes.
ENTRY, MOVE, KEPT, FLOOR, SPREAD, SHIFT = 32, 0, 4, 8, 12, 16
POWER_BITS = 8
POWERS = 1 << POWER_BITS


@njit(nogil=True, inline="always")
def entries_of(table: int) -> int:
    """Where the history has what rows miss, ENTRY bytes for each update that touched them last."""
    return field(field(table, HISTORY), 0)


@njit(nogil=True, inline="always")
def powers_of(table: int) -> int:
    """Where the history has powers of β2."""
    return field(field(table, HISTORY), 1)


@njit(nogil=True)
def last_of(direction: int, dim: int) -> Any:
    """The last update of the row with the direction at an address; see `headings.py`."""
    if dim % 16 == 0:
        return np.int64(simd.packed_i32(direction))
    return np.int64(load_i32(direction + 4 * dim))


@njit(nogil=True)
def store_direction(source: int, direction: int, dim: int, step: Any) -> None:
    """Write a row's direction and the number of its last update."""
    if dim % 16:
        copy(source, direction, dim)
        simd.store_i32(direction + 4 * dim, step)
        return
    simd.store16_packed(direction, simd.load16(source), step)
    for d in range(64, 4 * dim, 64):
        simd.store(direction + d, simd.load16(source + d))


@njit(nogil=True)
def move_of(table: int, row: int, dim: int) -> Any:
    """How far the row at an address has moved along its direction since its last update."""
    return load1(entries_of(table) + ENTRY * last_of(row + field(table, DIRECTION), dim) + MOVE)


@njit(nogil=True)
def square_left(powers: int, updates: int) -> Any:
    """β2 to the power of a number of updates: what is left of v."""
    if updates < POWERS * POWERS:
        low = load_f64(powers + 8 * (1 + (updates & (POWERS - 1))))
        return np.float32(low * load_f64(powers + 8 * (1 + POWERS + (updates >> POWER_BITS))))
    return np.float32(load_f64(powers) ** np.float64(updates))


@njit(nogil=True)
def _moved(w, d, move):  # type: ignore[no-untyped-def]
    return simd.subtract(w, simd.multiply(move, d))


@njit(nogil=True, inline="always")
def _read_part(like, weights, direction, move, target):  # type: ignore[no-untyped-def]
    u = simd.load_packed(like, direction)
    simd.store(target, _moved(simd.load(like, weights), u, simd.splat(like, move)))


@njit(nogil=True, inline="always")
def read_moved_wide(table: int, row: int, target: int, dim: int) -> None:
    """As `read_moved` of stored float32, for dims that are multiples of 16; part of its caller's loop."""
    direction = row + 4 * dim
    move = load1(entries_of(table) + ENTRY * np.int64(simd.packed_i32(direction)) + MOVE)
    for d in range(0, 4 * dim, 64):
        _read_part(simd.zeros16(), row + d, direction + d, move, target + d)


@njit(nogil=True)
def read_moved(table: int, row: int, weights: int, target: int, dim: int) -> None:
    """Write the float32 `weights` of the stored row at an address at `target`, as they are by now."""
    direction, move = row + field(table, DIRECTION), move_of(table, row, dim)
    d = 0
    while d + 16 <= dim:
        _read_part(simd.zeros16(), weights + 4 * d, direction + 4 * d, move, target + 4 * d)
        d += 16
    if d + 8 <= dim:
        _read_part(simd.zeros8(), weights + 4 * d, direction + 4 * d, move, target + 4 * d)
        d += 8
    if d + 4 <= dim:
        _read_part(simd.zeros4(), weights + 4 * d, direction + 4 * d, move, target + 4 * d)
        d += 4
    while d < dim:
        _read_part(ZERO, weights + 4 * d, direction + 4 * d, move, target + 4 * d)
        d += 1


@njit(nogil=True)
def _moment(u, v, kept, floor, spread, shift, spreads):  # type: ignore[no-untyped-def]
    """m, from the direction m/(√v + floor − spread/(√v + shift)), times what is left of it."""
    s = simd.root(v)
    below = simd.add(s, floor)
    if spreads:
        below = simd.subtract(below, simd.divide(spread, simd.add(s, shift)))
    return simd.multiply(simd.multiply(u, below), kept)


@njit(nogil=True, inline="always")
def _wide(weights, u_from, v_from, w_to, m_to, v_to, dim, left, entry):  # type: ignore[no-untyped-def]
    """Bring the part of a row up to date that whole vectors hold; returns how much that is."""
    move, kept = simd.splat16(load1(entry + MOVE)), simd.splat16(load1(entry + KEPT))
    floor, left16 = simd.splat16(load1(entry + FLOOR)), simd.splat16(left)
    d = 0
    while d + 16 <= dim:
        u, v = simd.load_packed(simd.zeros16(), u_from + 4 * d), simd.load16(v_from + 4 * d)
        below = simd.add(simd.root(v), floor)
        simd.store(w_to + 4 * d, _moved(simd.load16(weights + 4 * d), u, move))
        simd.store(m_to + 4 * d, simd.multiply(simd.multiply(u, below), kept))
        simd.store(v_to + 4 * d, simd.multiply(v, left16))
        d += 16
    return d


@njit(nogil=True)
def _wide_any(weights, u_from, v_from, w_to, m_to, v_to, dim, width, left, entry):  # type: ignore[no-untyped-def]
    """As `_wide`, where there is a spread or one second moment for all of a row."""
    move, kept = simd.splat16(load1(entry + MOVE)), simd.splat16(load1(entry + KEPT))
    floor, spread = simd.splat16(load1(entry + FLOOR)), simd.splat16(load1(entry + SPREAD))
    shift, more, left16 = simd.splat16(load1(entry + SHIFT)), load1(entry + SPREAD) != 0, simd.splat16(left)
    d = 0
    while d + 16 <= dim:
        u = simd.load_packed(simd.zeros16(), u_from + 4 * d)
        v = simd.load16(v_from + 4 * d) if width == dim else simd.splat16(load1(v_from))
        simd.store(w_to + 4 * d, _moved(simd.load16(weights + 4 * d), u, move))
        simd.store(m_to + 4 * d, _moment(u, v, kept, floor, spread, shift, more))
        if width == dim:
            simd.store(v_to + 4 * d, simd.multiply(v, left16))
        d += 16
    return d


@njit(nogil=True, inline="always")
def catch_up_wide(
    row: int, w_to: int, m_to: int, v_to: int, dim: int, entries: int, powers: int, updates: int
) -> None:
    """As `catch_up` of the row at an address: weights, direction and v side by side, a multiple of 16 each.

    Args:
        updates: how many there were before this one.
    """
    direction, square = row + 4 * dim, row + 8 * dim
    last = np.int64(simd.packed_i32(direction))
    entry, left = entries + ENTRY * last, square_left(powers, max(updates - last, 0))
    if load1(entry + SPREAD) == 0:
        _wide(row, direction, square, w_to, m_to, v_to, dim, left, entry)
    else:
        _wide_any(row, direction, square, w_to, m_to, v_to, dim, dim, left, entry)


@njit(nogil=True, inline="always")
def store_wide(row: int, w: int, direction: int, v: int, dim: int, step: Any) -> None:
    """Write such a row after its update."""
    copy_wide(w, row, dim)
    mark_written(row)
    store_direction(direction, row + 4 * dim, dim, step)
    copy_wide(v, row + 8 * dim, dim)


@njit(nogil=True)
def catch_up(
    weights: int, direction: int, square: int, to: Any, dim: int, width: int, left: Any, entry: int
) -> None:
    """Bring weights and moments of a row up to date.

    Args:
        weights, direction, square: addresses of float32 to read.
        to: addresses of weights, m and v to write; they may be those that are read.
        dim: of the row.
        width: of its second moments, dim or 1.
        left: what is left of v.
        entry: of the row's last update.
    """
    w_to, m_to, v_to = to
    if width == dim and load1(entry + SPREAD) == 0:
        d = _wide(weights, direction, square, w_to, m_to, v_to, dim, left, entry)
    else:
        d = _wide_any(weights, direction, square, w_to, m_to, v_to, dim, width, left, entry)
    if d == dim and width == dim:
        return
    move, kept, floor = load1(entry + MOVE), load1(entry + KEPT), load1(entry + FLOOR)
    spread, shift = load1(entry + SPREAD), load1(entry + SHIFT)
    last = load1(square)  # of a row with one
    while d < dim:
        u = load1(direction + 4 * d)
        v = load1(square + 4 * d) if width == dim else last
        simd.store(w_to + 4 * d, _moved(load1(weights + 4 * d), u, move))
        simd.store(m_to + 4 * d, _moment(u, v, kept, floor, spread, shift, spread != 0))
        if width == dim:
            simd.store(v_to + 4 * d, v * left)
        d += 1
    if width != dim:
        simd.store(v_to, last * left)
