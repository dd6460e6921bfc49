"""Functions of vectors that attention kernels need beside arithmetic: exp, maxima, masks, dropout."""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from recgrad.kernels.simd import (
    Vector,
    add,
    build_call,
    build_splat,
    divide,
    multiply,
    multiply_add,
    splat,
    subtract,
)

_FLOAT, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
# exp(x) = 2ⁿ·exp(r), n = round(x / ln 2), |r| ≤ ln 2 / 2, with ln 2 in two parts; exp(r) as 1 + r + r²·p(r).
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_LOWEST, _HIGHEST = -87.0, 88.0
_ROUNDER = 12582912.0  # 1.5·2²³: its sum with a small number has that number, rounded, in the lowest bits
_COEFFICIENTS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)


def _constant(element: Any, width: int) -> Any:
    """What makes vectors of one number."""
    return lambda value: ir.Constant(ir.VectorType(element, width), [value] * width)


def _numbers(width: int) -> Any:
    """0, 1, 2, …"""
    return ir.Constant(ir.VectorType(_I32, width), list(range(width)))


@intrinsic
def exponential(context: Any, x: Any) -> Any:
    """exp of a vector, within two units of the last place; x is held to [−87, 88], NaN stays NaN."""
    if not isinstance(x, Vector):
        return None
    reals, wholes = _constant(_FLOAT, x.width), _constant(_I32, x.width)
    floats, ints = ir.VectorType(_FLOAT, x.width), ir.VectorType(_I32, x.width)

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        low, high = reals(_LOWEST), reals(_HIGHEST)
        v = b.select(b.fcmp_ordered("<", args[0], low), low, args[0])
        v = b.select(b.fcmp_ordered(">", v, high), high, v)
        shifted = build_call(b, "fmuladd", [v, reals(_LOG2_E), reals(_ROUNDER)])
        n = b.fsub(shifted, reals(_ROUNDER))
        r = build_call(b, "fmuladd", [n, reals(-_LN2_HIGH), v])
        r = build_call(b, "fmuladd", [n, reals(-_LN2_LOW), r])
        p = reals(_COEFFICIENTS[0])
        for coefficient in _COEFFICIENTS[1:]:
            p = build_call(b, "fmuladd", [p, r, reals(coefficient)])
        y = b.fadd(build_call(b, "fmuladd", [p, b.fmul(r, r), r]), reals(1.0))
        power = b.shl(b.add(b.bitcast(shifted, ints), wholes(127)), wholes(23))
        return b.fmul(y, b.bitcast(power, floats))

    return x(x), generate


@intrinsic
def maximum(context: Any, a: Any, b: Any) -> Any:
    """The larger of each pair; NaN in `a` is kept."""

    def generate(_: Any, builder: Any, __: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[1], args[0])

    return a(a, a), generate


@intrinsic
def largest(context: Any, x: Any) -> Any:
    """The largest of a vector's numbers."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        rest, width = args[0], x.width
        while width > 1:
            width //= 2
            low, high = (
                ir.Constant(ir.VectorType(_I32, width), list(range(i, i + width))) for i in (0, width)
            )
            one, other = b.shuffle_vector(rest, rest, low), b.shuffle_vector(rest, rest, high)
            rest = b.select(b.fcmp_ordered("<", one, other), other, one)
        return b.extract_element(rest, _I32(0))

    return types.float32(x), generate


@intrinsic
def where_visible(context: Any, x: Any, other: Any, a0: Any, a1: Any, b0: Any, b1: Any) -> Any:
    """x in the lanes of [a0, a1) and [b0, b1), else `other`."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        bounds = [build_splat(b, b.trunc(value, _I32), x.width) for value in args[2:]]
        numbers = _numbers(x.width)
        inside = [
            b.and_(b.icmp_signed(">=", numbers, low), b.icmp_signed("<", numbers, high))
            for low, high in (bounds[:2], bounds[2:])
        ]
        return b.select(b.or_(*inside), args[0], args[1])

    return x(x, x, *[types.int64] * 4), generate


def _mixed(b: Any, x: Any, constant: Any) -> Any:
    """Well mixed bits of 32-bit numbers, by multiplications and shifts."""
    x = b.xor(x, b.lshr(x, constant(16)))
    x = b.xor(x_ := b.mul(x, constant(0x7FEB352D)), b.lshr(x_, constant(15)))
    return b.xor(x_ := b.mul(x, constant(0x846CA68B)), b.lshr(x_, constant(16)))


@intrinsic
def mixed_bits(context: Any, value: Any) -> Any:
    """The lower 32 bits of an int64, well mixed, from 0 to 2³² − 1."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        return b.zext(_mixed(b, b.trunc(args[0], _I32), _I32), _I64)

    return types.int64(types.int64), generate


@intrinsic
def drawn_above(context: Any, x: Any, key: Any, first: Any, threshold: Any) -> Any:
    """x in lanes whose draw is at least `threshold` of 2³², else 0; lane i draws by (key, first + i)."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        ints = _constant(_I32, x.width)
        key, first, threshold = (build_splat(b, b.trunc(value, _I32), x.width) for value in args[1:])
        numbers = b.mul(b.add(first, _numbers(x.width)), ints(0x9E3779B9))
        draws = _mixed(b, b.add(key, numbers), ints)
        return b.select(b.icmp_unsigned(">=", draws, threshold), args[0], _constant(_FLOAT, x.width)(0.0))

    return x(x, *[types.int64] * 3), generate


@intrinsic
def bits64(context: Any, value: Any) -> Any:
    """The bits of a float64 as int64."""
    return types.int64(types.float64), lambda _, b, __, args: b.bitcast(args[0], _I64)


@njit
def sigmoid(x):  # type: ignore[no-untyped-def]
    """1 / (1 + exp(−x)) of a vector."""
    one = splat(x, np.float32(1))
    return divide(one, add(one, exponential(subtract(splat(x, np.float32(0)), x))))


@njit
def silu_slope(s, sigma):  # type: ignore[no-untyped-def]
    """The derivative of s·σ(s): σ·(1 + s·(1 − σ))."""
    one = splat(s, np.float32(1))
    return multiply(sigma, multiply_add(s, subtract(one, sigma), one))
