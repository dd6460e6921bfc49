"""One pass over the outputs of a product: bias and ReLU on the way forward, the gate and the gradient of
the bias on the way back.

    forward   x ← relu(x + b)                       in place
    backward  g' = g where x > 0, else 0;  b' = Σ_rows g'

Rows are cut into blocks of ROWS_OF_TASK whatever the number of threads, and each block has its own sum of
gradients of the bias, so that results do not depend on that number.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from recgrad.kernels.compile import Wanted, compiled
from recgrad.kernels.parallel import FIRST, Launch, launch, next_task
from recgrad.kernels.simd import LANES, LINE, add, address, field, keep_positive, load1, load16, store

ROWS_OF_TASK = 128

(TASKS, ROWS, WIDTH, X, X_ROW, BIAS, G, G_ROW, OUT, OUT_ROW, SUMS) = range(FIRST, FIRST + 11)


def add_bias_relu(x: Tensor, bias: Tensor | None) -> None:
    """x [rows, width] ← relu(x + bias), in place; columns must lie side by side."""
    rows, width = x.shape
    tasks = -(-rows // ROWS_OF_TASK)
    sizes = (tasks, rows, width, x, 4 * x.stride(0), 0 if bias is None else bias)
    launch(compiled(bias_relu_tasks), *sizes, tasks=tasks)


def gate(gradient: Tensor, x: Tensor, out: Tensor, sums: Tensor | None = None, run: Launch = launch) -> None:
    """out ← gradient where x > 0, else 0, which may be in place.

    `sums`, of `new_sums`, gets the sums of its columns, of some rows each.
    """
    rows, width = x.shape
    tasks = -(-rows // ROWS_OF_TASK)
    run(
        compiled(gate_tasks),
        *(tasks, rows, width, x, 4 * x.stride(0), 0, gradient, 4 * gradient.stride(0)),
        *(out, 4 * out.stride(0), 0 if sums is None else sums),
        tasks=tasks,
    )


def new_sums(x: Tensor) -> Tensor:
    """To be written by `gate`."""
    return torch.empty(-(-x.shape[0] // ROWS_OF_TASK), x.shape[1])


def kernels() -> list[Wanted]:
    """What a step of layers with ReLU needs compiled."""
    return [Wanted(bias_relu_tasks), Wanted(gate_tasks)]


@njit(nogil=True)
def bias_relu_tasks(a: int) -> None:
    """Some rows each."""
    bytes_, x_row, bias = 4 * field(a, WIDTH), field(a, X_ROW), field(a, BIAS)
    whole, zero = bytes_ - bytes_ % LINE, np.float32(0)
    task = next_task(a)
    while task < field(a, TASKS):
        for r in range(ROWS_OF_TASK * task, min(ROWS_OF_TASK * (task + 1), field(a, ROWS))):
            x = field(a, X) + r * x_row
            for p in range(0, whole, LINE):
                v = load16(x + p) if bias == 0 else add(load16(x + p), load16(bias + p))
                store(x + p, keep_positive(v, v))
            for p in range(whole, bytes_, 4):
                y = load1(x + p) if bias == 0 else load1(x + p) + load1(bias + p)
                store(x + p, zero if y <= zero else y)
        task = next_task(a)


@njit(nogil=True)
def gate_tasks(a: int) -> None:
    """Some rows each, with the sum of their gradients."""
    bytes_ = 4 * field(a, WIDTH)
    whole, zero = bytes_ - bytes_ % LINE, np.float32(0)
    unwanted = np.empty(bytes_ // 4 + LANES, np.float32)
    task = next_task(a)
    while task < field(a, TASKS):
        sums = field(a, SUMS) + task * bytes_
        if field(a, SUMS) == 0:
            sums = address(unwanted)
        for p in range(0, bytes_, 4):
            store(sums + p, zero)
        for r in range(ROWS_OF_TASK * task, min(ROWS_OF_TASK * (task + 1), field(a, ROWS))):
            x, g = field(a, X) + r * field(a, X_ROW), field(a, G) + r * field(a, G_ROW)
            out = field(a, OUT) + r * field(a, OUT_ROW)
            for p in range(0, whole, LINE):
                v = keep_positive(load16(g + p), load16(x + p))
                store(out + p, v)
                store(sums + p, add(load16(sums + p), v))
            for p in range(whole, bytes_, 4):
                y = zero if load1(x + p) <= zero else load1(g + p)
                store(out + p, y)
                store(sums + p, load1(sums + p) + y)
        task = next_task(a)
