"""What an STU layer does around its attention, position by position: [u | o | u ∘ LN(o)], u = silu(s).

Positions are cut into tasks by their number alone, and sums over positions are kept by task: results do not
depend on the number of threads. Columns come in whole vectors of sixteen.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from recgrad.kernels.parallel import FIRST, next_task
from recgrad.kernels.simd import (
    LINE,
    add,
    field,
    load1,
    load16,
    multiply,
    multiply_add,
    splat16,
    store,
    subtract,
    total,
    zeros16,
)
from recgrad.kernels.tiles import add_to
from recgrad.kernels.vector_math import sigmoid, silu_slope

# An argument block: numbers and addresses; a `_ROW` is bytes from one position to the next.
(TASKS, POSITIONS, STEP, WIDTH, S, S_ROW, PARTS, PARTS_ROW, WEIGHT, BIAS, EPS) = range(FIRST, FIRST + 11)
(GRAD, GRAD_ROW, GRAD_S, GRAD_S_ROW, GRAD_O, GRAD_O_ROW, SUMS) = range(EPS + 1, EPS + 8)
ARGUMENTS = SUMS + 1


@njit
def _moments(o, size, eps):  # type: ignore[no-untyped-def]
    """Mean and 1 / √(variance + eps) of `size` bytes of numbers."""
    count = np.float32(size // 4)
    sums = zeros16()
    for i in range(0, size, LINE):
        sums = add(sums, load16(o + i))
    mean = total(sums) / count
    sums = zeros16()
    for i in range(0, size, LINE):
        apart = subtract(load16(o + i), splat16(mean))
        sums = multiply_add(apart, apart, sums)
    return mean, np.float32(1) / np.float32(math.sqrt(total(sums) / count + eps))


@njit(nogil=True)
def gate_positions(a: int) -> None:
    """Writes u before the attention's output o, and u ∘ LN(o) behind it."""
    task, size, eps = next_task(a), 4 * field(a, WIDTH), load1(field(a, EPS))
    weight, bias = field(a, WEIGHT), field(a, BIAS)
    while task < field(a, TASKS):
        first = task * field(a, STEP)
        for t in range(first, min(first + field(a, STEP), field(a, POSITIONS))):
            s, u = field(a, S) + t * field(a, S_ROW), field(a, PARTS) + t * field(a, PARTS_ROW)
            o, gated = u + size, u + 2 * size
            mean, by = _moments(o, size, eps)
            for i in range(0, size, LINE):
                x = load16(s + i)
                x = multiply(x, sigmoid(x))
                n = multiply(subtract(load16(o + i), splat16(mean)), splat16(by))
                store(u + i, x)
                store(gated + i, multiply(x, multiply_add(n, load16(weight + i), load16(bias + i))))
        task = next_task(a)


@njit(nogil=True)
def ungate_positions(a: int) -> None:
    """Gradients of s and o from those of the three parts; those of the norm's weights are summed by task."""
    task = next_task(a)
    while task < field(a, TASKS):
        first, sums = task * field(a, STEP), field(a, SUMS) + task * 8 * field(a, WIDTH)
        for t in range(first, min(first + field(a, STEP), field(a, POSITIONS))):
            _ungate(a, t, sums)
        task = next_task(a)


@njit
def _ungate(a, t, sums):  # type: ignore[no-untyped-def]
    size, eps = 4 * field(a, WIDTH), load1(field(a, EPS))
    weight, bias = field(a, WEIGHT), field(a, BIAS)
    s, u = field(a, S) + t * field(a, S_ROW), field(a, PARTS) + t * field(a, PARTS_ROW)
    g, to = field(a, GRAD) + t * field(a, GRAD_ROW), field(a, GRAD_S) + t * field(a, GRAD_S_ROW)
    o = u + size
    mean, by = _moments(o, size, eps)
    whole, along = zeros16(), zeros16()
    for i in range(0, size, LINE):
        x, gated = load16(s + i), load16(g + 2 * size + i)
        n = multiply(subtract(load16(o + i), splat16(mean)), splat16(by))
        y = multiply_add(n, load16(weight + i), load16(bias + i))
        store(to + i, multiply(multiply_add(gated, y, load16(g + i)), silu_slope(x, sigmoid(x))))
        of_y = multiply(gated, load16(u + i))
        add_to(sums + i, multiply(of_y, n))
        add_to(sums + size + i, of_y)
        of_n = multiply(of_y, load16(weight + i))
        whole, along = add(whole, of_n), multiply_add(of_n, n, along)
    count = np.float32(size // 4)
    shift, slope = total(whole) / count, total(along) / count
    to = field(a, GRAD_O) + t * field(a, GRAD_O_ROW)
    for i in range(0, size, LINE):
        n = multiply(subtract(load16(o + i), splat16(mean)), splat16(by))
        of_n = multiply(multiply(load16(g + 2 * size + i), load16(u + i)), load16(weight + i))
        rest = subtract(subtract(of_n, splat16(shift)), multiply(n, splat16(slope)))
        store(to + i, multiply_add(splat16(by), rest, load16(g + size + i)))
