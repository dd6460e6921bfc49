"""The factorization machine in one pass over the fields of a row, each way.

    row of x   ┌ before ┬ v_0 (dim) ┬ v_1 ┬ … ┬ v_{n−1} ┬ after ┐
    forward    y = ½((Σ v)² − Σ v²)                         reads the row once
    backward   v_i' = x'_i + y'∘(Σ v − v_i)                 x' is what else has the row as its input

A task is some rows, which no other task writes to, so that results do not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from torch import Tensor

from recgrad.kernels import simd
from recgrad.kernels.compile import Wanted, compiled
from recgrad.kernels.parallel import FIRST, launch, next_task
from recgrad.kernels.simd import field
from recgrad.kernels.tiles import copy_rows

ROWS_OF_TASK = 128

(TASKS, ROWS, FIELDS, DIM, FIRST_COLUMN, X, X_ROW, Y, Y_ROW, WIDTH, OTHER, OTHER_ROW, OUT, OUT_ROW) = range(
    FIRST, FIRST + 14
)


def interactions(x: Tensor, first: int, fields: int, out: Tensor) -> None:
    """out [rows, dim] ← Σ_{i<j} v_i∘v_j of the fields from column `first` of x on."""
    rows, dim = out.shape
    tasks = -(-rows // ROWS_OF_TASK)
    sizes = (tasks, rows, fields, dim, first, x.data_ptr(), 4 * x.stride(0))
    launch(compiled(interact_tasks), *sizes, out.data_ptr(), 4 * out.stride(0), tasks=tasks)


def interactions_backward(
    x: Tensor, first: int, fields: int, of_y: Tensor, other: Tensor | None, out: Tensor
) -> None:
    """out [rows, width of x] ← the gradient of x, `other` (or 0) plus that of the interactions."""
    rows, dim = of_y.shape
    tasks = -(-rows // ROWS_OF_TASK)
    sizes = (tasks, rows, fields, dim, first, x.data_ptr(), 4 * x.stride(0))
    places = (of_y.data_ptr(), 4 * of_y.stride(0), x.shape[1])
    given = (0, 0) if other is None else (other.data_ptr(), 4 * other.stride(0))
    kernel = compiled(interact_backward_tasks)
    launch(kernel, *sizes, *places, *given, out.data_ptr(), 4 * out.stride(0), tasks=tasks)


def kernels() -> list[Wanted]:
    """What a step needs compiled."""
    return [Wanted(interact_tasks), Wanted(interact_backward_tasks)]


@njit(nogil=True, inline="always")
def _interact(like, v, step, fields, y):  # type: ignore[no-untyped-def]
    """As many elements as `like`, which is 0, has."""
    total, squares = like, like
    for i in range(fields):
        x = simd.load(like, v + i * step)
        total = simd.add(total, x)
        squares = simd.multiply_add(x, x, squares)
    half = simd.splat(like, np.float32(0.5))
    simd.store(y, simd.multiply(half, simd.subtract(simd.multiply(total, total), squares)))


@njit(nogil=True, inline="always")
def _interact_backward(like, v, step, fields, of_y, other, out):  # type: ignore[no-untyped-def]
    total = like
    for i in range(fields):
        total = simd.add(total, simd.load(like, v + i * step))
    g = simd.load(like, of_y)
    for i in range(fields):
        rest = simd.subtract(total, simd.load(like, v + i * step))
        begin = like if other == 0 else simd.load(like, other + i * step)
        simd.store(out + i * step, simd.multiply_add(g, rest, begin))


@njit(nogil=True)
def interact_tasks(a: int) -> None:
    """Some rows each."""
    step, fields = 4 * field(a, DIM), field(a, FIELDS)
    task = next_task(a)
    while task < field(a, TASKS):
        for r in range(ROWS_OF_TASK * task, min(ROWS_OF_TASK * (task + 1), field(a, ROWS))):
            v = field(a, X) + r * field(a, X_ROW) + 4 * field(a, FIRST_COLUMN)
            y = field(a, Y) + r * field(a, Y_ROW)
            d = 0
            while d + 64 <= step:
                _interact(simd.zeros16(), v + d, step, fields, y + d)
                d += 64
            while d + 16 <= step:
                _interact(simd.zeros4(), v + d, step, fields, y + d)
                d += 16
            while d < step:
                _interact(np.float32(0), v + d, step, fields, y + d)
                d += 4
        task = next_task(a)


@njit(nogil=True)
def interact_backward_tasks(a: int) -> None:
    """Some rows each."""
    step, fields, first = 4 * field(a, DIM), field(a, FIELDS), 4 * field(a, FIRST_COLUMN)
    width, last = field(a, WIDTH), field(a, FIRST_COLUMN) + fields * field(a, DIM)
    task = next_task(a)
    while task < field(a, TASKS):
        for r in range(ROWS_OF_TASK * task, min(ROWS_OF_TASK * (task + 1), field(a, ROWS))):
            v, g = field(a, X) + r * field(a, X_ROW) + first, field(a, Y) + r * field(a, Y_ROW)
            out, other = field(a, OUT) + r * field(a, OUT_ROW), np.int64(0)
            if field(a, OTHER) != 0:
                row = field(a, OTHER) + r * field(a, OTHER_ROW)
                other = row + first
                copy_rows(row, 0, out, 0, 1, first // 4)
                copy_rows(row + 4 * last, 0, out + 4 * last, 0, 1, width - last)
            else:
                for d in range(0, first, 4):
                    simd.store(out + d, np.float32(0))
                for d in range(4 * last, 4 * width, 4):
                    simd.store(out + d, np.float32(0))
            out += first
            d = 0
            while d + 64 <= step:
                _interact_backward(simd.zeros16(), v + d, step, fields, g + d, _plus(other, d), out + d)
                d += 64
            while d + 16 <= step:
                _interact_backward(simd.zeros4(), v + d, step, fields, g + d, _plus(other, d), out + d)
                d += 16
            while d < step:
                _interact_backward(np.float32(0), v + d, step, fields, g + d, _plus(other, d), out + d)
                d += 4
        task = next_task(a)


@njit(nogil=True, inline="always")
def _plus(address, bytes_):  # type: ignore[no-untyped-def]
    """An address further on, or none."""
    return address if address == 0 else address + bytes_
