"""Weighted sums of experts, row by row, and their gradients.

    y[t] (+)= Σ_e p[t, e] · h[e]          forward
    h'[e] = Σ_t p[t, e] · y'[t],   p'[t, e] = ⟨y'[t], h[e]⟩          backward

A row's weights are a few numbers and its experts a few vectors, for which a call of a matrix product costs
more than the product. A task is some rows, which no other task writes to, so that results do not depend on
the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from torch import Tensor

from recgrad.kernels.compile import Wanted, compiled
from recgrad.kernels.parallel import FIRST, launch, next_task
from recgrad.kernels.simd import LINE, field, load1, load16, multiply_add, splat16, store, total, zeros16

ROWS_OF_TASK = 128

(TASKS, ROWS, TARGETS, EXPERTS, WIDTH, P, P_ROW, P_STEP, H, H_ROW, Y, ADDS, OF_H, OF_P) = range(
    FIRST, FIRST + 14
)


def mix(p: Tensor, h: Tensor, y: Tensor, *, adds: bool) -> None:
    """y [rows, t, width] (+)= Σ_e p[:, t, e] · h[:, e]; of p [rows, t, e] and h [rows, e, width]."""
    _launch(mix_tasks, p, h, y.data_ptr(), int(adds), 0, 0)


def mix_backward(p: Tensor, h: Tensor, of_y: Tensor, of_h: Tensor, of_p: Tensor) -> None:
    """Gradients of h, and of p into memory that lies as p does, from that of y, which is contiguous."""
    _launch(mix_backward_tasks, p, h, of_y.data_ptr(), 0, of_h.data_ptr(), of_p.data_ptr())


def kernels() -> list[Wanted]:
    """What a step needs compiled."""
    return [Wanted(mix_tasks), Wanted(mix_backward_tasks)]


def _launch(kernel: object, p: Tensor, h: Tensor, *rest: int) -> None:
    rows, experts, width = h.shape
    tasks = -(-rows // ROWS_OF_TASK)
    sizes = (tasks, rows, p.shape[1], experts, width)
    weights = (p.data_ptr(), 4 * p.stride(0), 4 * p.stride(1))
    launch(compiled(kernel), *sizes, *weights, h.data_ptr(), 4 * h.stride(0), *rest, tasks=tasks)


@njit(nogil=True)
def mix_tasks(a: int) -> None:
    """Some rows each."""
    bytes_, targets, experts = 4 * field(a, WIDTH), field(a, TARGETS), field(a, EXPERTS)
    whole, adds = bytes_ - bytes_ % LINE, field(a, ADDS) != 0
    task = next_task(a)
    while task < field(a, TASKS):
        for r in range(ROWS_OF_TASK * task, min(ROWS_OF_TASK * (task + 1), field(a, ROWS))):
            h, y = field(a, H) + r * field(a, H_ROW), field(a, Y) + r * targets * bytes_
            p = field(a, P) + r * field(a, P_ROW)
            for _ in range(targets):
                for d in range(0, whole, LINE):
                    c = load16(y + d) if adds else zeros16()
                    for e in range(experts):
                        c = multiply_add(splat16(load1(p + 4 * e)), load16(h + e * bytes_ + d), c)
                    store(y + d, c)
                for d in range(whole, bytes_, 4):
                    s = load1(y + d) if adds else np.float32(0)
                    for e in range(experts):
                        s += load1(p + 4 * e) * load1(h + e * bytes_ + d)
                    store(y + d, s)
                p += field(a, P_STEP)
                y += bytes_
        task = next_task(a)


@njit(nogil=True)
def mix_backward_tasks(a: int) -> None:
    """Some rows each."""
    bytes_, targets, experts = 4 * field(a, WIDTH), field(a, TARGETS), field(a, EXPERTS)
    whole, step = bytes_ - bytes_ % LINE, field(a, P_STEP)
    task = next_task(a)
    while task < field(a, TASKS):
        for r in range(ROWS_OF_TASK * task, min(ROWS_OF_TASK * (task + 1), field(a, ROWS))):
            h, g = field(a, H) + r * field(a, H_ROW), field(a, Y) + r * targets * bytes_
            p, of_p = field(a, P) + r * field(a, P_ROW), field(a, OF_P) + r * field(a, P_ROW)
            of_h = field(a, OF_H) + r * experts * bytes_
            for e in range(experts):
                _of_expert(p + 4 * e, step, g, targets, whole, bytes_, of_h + e * bytes_)
                for t in range(targets):
                    store(of_p + t * step + 4 * e, _product(g + t * bytes_, h + e * bytes_, whole, bytes_))
        task = next_task(a)


@njit(nogil=True)
def _of_expert(p, step, g, targets, whole, bytes_, out):  # type: ignore[no-untyped-def]
    """Σ_t p[t] · g[t] of one expert."""
    for d in range(0, whole, LINE):
        c = zeros16()
        for t in range(targets):
            c = multiply_add(splat16(load1(p + t * step)), load16(g + t * bytes_ + d), c)
        store(out + d, c)
    for d in range(whole, bytes_, 4):
        s = np.float32(0)
        for t in range(targets):
            s += load1(p + t * step) * load1(g + t * bytes_ + d)
        store(out + d, s)


@njit(nogil=True)
def _product(x, y, whole, bytes_):  # type: ignore[no-untyped-def]
    """⟨x, y⟩."""
    c = zeros16()
    for d in range(0, whole, LINE):
        c = multiply_add(load16(x + d), load16(y + d), c)
    s = total(c)
    for d in range(whole, bytes_, 4):
        s += load1(x + d) * load1(y + d)
    return s
