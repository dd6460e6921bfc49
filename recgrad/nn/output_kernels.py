"""A linear layer with one output, in one pass over its input each way.

    forward    y[r] = w·x[r] + b
    backward   x'[r] = y'[r]·w,   w' = Σ_r y'[r]·x[r]           reads and writes each row once

Torch's matrix products go through the input once more, and treat a vector as a matrix of one column. Rows are
cut into blocks of ROWS_OF_TASK whatever the number of threads, and each block has its own sum of w', so that
results do not depend on that number.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from recgrad.kernels.compile import Wanted, compiled
from recgrad.kernels.parallel import FIRST, launch, next_task
from recgrad.kernels.simd import (
    LANES,
    LINE,
    field,
    load1,
    load16,
    multiply,
    multiply_add,
    splat16,
    store,
    total,
    zeros16,
)

ROWS_OF_TASK = 128

(TASKS, ROWS, WIDTH, X, X_ROW, WEIGHT, BIAS, Y, OF_X, OF_X_ROW, SUMS, SUMS_ROW) = range(FIRST, FIRST + 12)


def kernels() -> list[Wanted]:
    """What a step needs compiled."""
    return [Wanted(dot_tasks), Wanted(dot_backward_tasks)]


def dots(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[rows, 1]: the product of each row of x [rows, width] with weight [1, width], plus bias [1]."""
    rows, width = x.shape
    out = torch.empty(rows, 1)
    tasks = -(-rows // ROWS_OF_TASK)
    places = (x, 4 * x.stride(0), weight, 0 if bias is None else bias, out)
    launch(compiled(dot_tasks), tasks, rows, width, *places, tasks=tasks)
    return out


def dots_backward(x: Tensor, weight: Tensor, gradient: Tensor, *, of_x: bool) -> tuple[Tensor | None, Tensor]:
    """The gradients of x, where it is asked for, and of weight; gradient [rows, 1] must be contiguous."""
    rows, width = x.shape
    tasks = -(-rows // ROWS_OF_TASK)
    below = torch.empty(rows, width) if of_x else None
    sums = torch.zeros(tasks, -(-width // LANES) * LANES)
    places = (x, 4 * x.stride(0), weight, 0, gradient, 0 if below is None else below, 4 * width)
    launch(compiled(dot_backward_tasks), tasks, rows, width, *places, sums, 4 * sums.shape[1], tasks=tasks)
    return below, sums.sum(0)[None, :width]


@njit(nogil=True)
def dot_tasks(a: int) -> None:
    """Some rows each."""
    bytes_, weight = 4 * field(a, WIDTH), field(a, WEIGHT)
    whole = bytes_ - bytes_ % LINE
    bias = np.float32(0) if field(a, BIAS) == 0 else load1(field(a, BIAS))
    task = next_task(a)
    while task < field(a, TASKS):
        for r in range(ROWS_OF_TASK * task, min(ROWS_OF_TASK * (task + 1), field(a, ROWS))):
            x, sums = field(a, X) + r * field(a, X_ROW), zeros16()
            for p in range(0, whole, LINE):
                sums = multiply_add(load16(x + p), load16(weight + p), sums)
            y = total(sums)
            for p in range(whole, bytes_, 4):
                y += load1(x + p) * load1(weight + p)
            store(field(a, Y) + 4 * r, y + bias)
        task = next_task(a)


@njit(nogil=True)
def dot_backward_tasks(a: int) -> None:
    """Some rows each, with their sum of the weight's gradient."""
    bytes_, weight = 4 * field(a, WIDTH), field(a, WEIGHT)
    whole = bytes_ - bytes_ % LINE
    task = next_task(a)
    while task < field(a, TASKS):
        sums = field(a, SUMS) + task * field(a, SUMS_ROW)
        for r in range(ROWS_OF_TASK * task, min(ROWS_OF_TASK * (task + 1), field(a, ROWS))):
            x, below, g = field(a, X) + r * field(a, X_ROW), field(a, OF_X), load1(field(a, Y) + 4 * r)
            below += r * field(a, OF_X_ROW)
            by = splat16(g)
            for p in range(0, whole, LINE):
                store(sums + p, multiply_add(by, load16(x + p), load16(sums + p)))
                if field(a, OF_X) != 0:
                    store(below + p, multiply(by, load16(weight + p)))
            for p in range(whole, bytes_, 4):
                store(sums + p, load1(sums + p) + g * load1(x + p))
                if field(a, OF_X) != 0:
                    store(below + p, g * load1(weight + p))
        task = next_task(a)
