"""The gradient of one row: the sum over its occurrences, in their order."""

from __future__ import annotations

from typing import Any

from numba import njit

from recgrad.embedding.local.rows import ZERO
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


@njit(nogil=True, inline="always")
def _sum_part(like, gradients, p, q, d, out):  # type: ignore[no-untyped-def]
    """As `sum_gradients`, of as many elements as `like` has, from element d on."""
    acc = simd.load(like, load_i64(gradients + 8 * p) + 4 * d)
    for i in range(p + 1, q):
        acc = simd.add(acc, simd.load(like, load_i64(gradients + 8 * i) + 4 * d))
    simd.store(out + 4 * d, acc)


@njit(nogil=True)
def sum_gradients(gradients: int, p: int, q: int, dim: int, out: int) -> None:
    """out = Σ g over occurrences p … q, at least one; `gradients` is where the addresses of all g are."""
    d = 0
    while d + 16 <= dim:
        _sum_part(simd.zeros16(), gradients, p, q, d, out)
        d += 16
    if d + 8 <= dim:
        _sum_part(simd.zeros8(), gradients, p, q, d, out)
        d += 8
    if d + 4 <= dim:
        _sum_part(simd.zeros4(), gradients, p, q, d, out)
        d += 4
    while d < dim:
        _sum_part(ZERO, gradients, p, q, d, out)
        d += 1


@njit(nogil=True, inline="always")
def _scaled_part(zero, gradients, coefficients, limit, p, q, d, out):  # type: ignore[no-untyped-def]
    """As `sum_scaled_gradients`, of as many elements as `zero` has, from element d on."""
    acc = zero
    for i in range(p, q):
        x = simd.clamp(simd.load(zero, load_i64(gradients + 8 * i) + 4 * d), simd.splat(zero, limit))
        if coefficients != 0:
            x = simd.multiply(simd.splat(zero, simd.load1(coefficients + 4 * i)), x)
        acc = simd.add(acc, x)
    simd.store(out + 4 * d, acc)


@njit(nogil=True)
def sum_scaled_gradients(
    gradients: int, coefficients: int, limit: Any, p: int, q: int, dim: int, out: int
) -> None:
    """out = Σ coefficient · clamp(g, ±limit) over occurrences p … q; no coefficients (0) are ones."""
    d = 0
    while d + 8 <= dim:
        _scaled_part(simd.zeros8(), gradients, coefficients, limit, p, q, d, out)
        d += 8
    while d < dim:
        _scaled_part(ZERO, gradients, coefficients, limit, p, q, d, out)
        d += 1
