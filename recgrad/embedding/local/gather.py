"""The gradient of one row: the sum over its occurrences, in their order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from recgrad.kernels import simd
from recgrad.kernels.simd import load_i64


@njit(nogil=True, inline="always")
def sum_wide(gradients: int, p: int, q: int, dim: int, out: int) -> None:
    """As `sum_gradients`, for dims that are multiples of 16; part of its caller's loop."""
    for d in range(0, 4 * dim, 64):
        acc = simd.load16(load_i64(gradients + 8 * p) + d)
        for i in range(p + 1, q):
            acc = simd.add(acc, simd.load16(load_i64(gradients + 8 * i) + d))
        simd.store(out + d, acc)


@njit(nogil=True)
def sum_gradients(gradients: int, p: int, q: int, dim: int, out: int) -> None:
    """out = Σ g over occurrences p … q, at least one; `gradients` is where the addresses of all g are."""
    d = 0
    while d + 16 <= dim:
        acc = simd.load16(load_i64(gradients + 8 * p) + 4 * d)
        for i in range(p + 1, q):
            acc = simd.add(acc, simd.load16(load_i64(gradients + 8 * i) + 4 * d))
        simd.store(out + 4 * d, acc)
        d += 16
    if d + 8 <= dim:
        acc8 = simd.load8(load_i64(gradients + 8 * p) + 4 * d)
        for i in range(p + 1, q):
            acc8 = simd.add(acc8, simd.load8(load_i64(gradients + 8 * i) + 4 * d))
        simd.store(out + 4 * d, acc8)
        d += 8
    if d + 4 <= dim:
        acc4 = simd.load4(load_i64(gradients + 8 * p) + 4 * d)
        for i in range(p + 1, q):
            acc4 = simd.add(acc4, simd.load4(load_i64(gradients + 8 * i) + 4 * d))
        simd.store(out + 4 * d, acc4)
        d += 4
    while d < dim:
        acc1 = simd.load1(load_i64(gradients + 8 * p) + 4 * d)
        for i in range(p + 1, q):
            acc1 += simd.load1(load_i64(gradients + 8 * i) + 4 * d)
        simd.store(out + 4 * d, acc1)
        d += 1


@njit(nogil=True)
def sum_scaled_gradients(
    gradients: int, coefficients: int, limit: Any, p: int, q: int, dim: int, out: int
) -> None:
    """out = Σ coefficient · clamp(g, ±limit) over occurrences p … q; no coefficients (0) are ones."""
    d = 0
    while d + 8 <= dim:
        acc = simd.splat8(np.float32(0))
        for i in range(p, q):
            x = simd.clamp(simd.load8(load_i64(gradients + 8 * i) + 4 * d), simd.splat8(limit))
            if coefficients != 0:
                x = simd.multiply(simd.splat8(simd.load1(coefficients + 4 * i)), x)
            acc = simd.add(acc, x)
        simd.store(out + 4 * d, acc)
        d += 8
    while d < dim:
        acc1 = np.float32(0)
        for i in range(p, q):
            x1 = simd.clamp(simd.load1(load_i64(gradients + 8 * i) + 4 * d), limit)
            if coefficients != 0:
                x1 = simd.load1(coefficients + 4 * i) * x1
            acc1 += x1
        simd.store(out + 4 * d, acc1)
        d += 1
