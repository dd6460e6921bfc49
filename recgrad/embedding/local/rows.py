"""Reading and writing one row, whatever its storage type.

A row that was never written is all zero bits, as fresh memory is; its value then comes from
the generator. To keep the two apart, a first element of +0 is written as −0.

Rows of I8 are of exported tables alone: a scale as bfloat16, then an int8 for each element.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from recgrad.embedding.local.initializer import draw, element, row_stream
from recgrad.embedding.local.layout import FIRST_COLUMN, FIRST_ROW, INIT, KEY, KEYS, KIND
from recgrad.kernels import simd
from recgrad.kernels.simd import BF16, F16, F32, I8, bits

ZERO = np.float32(0)
_NEGATIVE_ZERO = np.int32(-2147483648)
_NEGATIVE_ZERO_16 = np.int16(-32768)


@njit(nogil=True)
def untouched(address: int, kind: int) -> bool:
    """Whether the row at an address was never written."""
    if kind == F32:
        return simd.load_i32(address) == 0
    return simd.load_i16(address) == 0


@njit(nogil=True)
def prefetch_row(address: int, size: int) -> None:
    """Bring the cache lines of `size` bytes from an address on near."""
    simd.prefetch(address)
    line = 64
    while line < size:
        simd.prefetch(address + line)
        line += 64


@njit(nogil=True)
def load_stored(like, address, kind):  # type: ignore[no-untyped-def]
    """As many stored elements as `like` has, as float32."""
    if kind == F32:
        return simd.load(like, address)
    if kind == F16:
        return simd.load_half(like, address)
    return simd.load_bf16(like, address)


@njit(nogil=True)
def load_scaled(like, row, d):  # type: ignore[no-untyped-def]
    """As many elements of a row of I8 as `like` has, from element d on, as float32."""
    scale = simd.splat(like, simd.load_bf16(ZERO, row))
    return simd.multiply(scale, simd.load_i8(like, row + 2 + d))


@njit(nogil=True, inline="always")
def _copy_part(like, source, target):  # type: ignore[no-untyped-def]
    simd.store(target, simd.load(like, source))


@njit(nogil=True)
def copy(source: int, target: int, dim: int) -> None:
    """Copy `dim` float32 from address to address."""
    d = 0
    while d + 16 <= dim:
        _copy_part(simd.zeros16(), source + 4 * d, target + 4 * d)
        d += 16
    if d + 8 <= dim:
        _copy_part(simd.zeros8(), source + 4 * d, target + 4 * d)
        d += 8
    if d + 4 <= dim:
        _copy_part(simd.zeros4(), source + 4 * d, target + 4 * d)
        d += 4
    while d < dim:
        _copy_part(ZERO, source + 4 * d, target + 4 * d)
        d += 1


@njit(nogil=True, inline="always")
def copy_wide(source: int, target: int, dim: int) -> None:
    """As `copy`, for dims that are multiples of 16; small enough to be part of its caller's loop."""
    for d in range(0, 4 * dim, 64):
        simd.store(target + d, simd.load16(source + d))


@njit(nogil=True)
def read(source: int, kind: int, target: int, dim: int) -> None:
    """Write a stored row as float32 at `target`."""
    if kind == F32:
        copy(source, target, dim)
        return
    for d in range(dim):
        if kind == I8:
            simd.store(target + 4 * d, load_scaled(ZERO, source, d))
        else:
            simd.store(target + 4 * d, load_stored(ZERO, source + 2 * d, kind))


@njit(nogil=True)
def _stochastic(value: Any, mantissa: int, lowest: int, largest: float, noise: float) -> Any:
    """Round to a shorter float, up with the probability that keeps the mean; saturates.

    Args:
        value: float32.
        mantissa: stored bits of the short type's mantissa.
        lowest: exponent of its smallest normal number.
        largest: its largest finite value.
        noise: uniform in [0, 1); ½ rounds to nearest.
    """
    x = float(value)
    if not math.isfinite(x) or x == 0.0:
        return value
    exponent = max(math.frexp(x)[1] - 1, lowest)
    quantum = math.ldexp(1.0, exponent - mantissa)
    return np.float32(max(-largest, min(largest, math.floor(x / quantum + noise) * quantum)))


@njit(nogil=True)
def shorten(value: Any, kind: int, noise: float) -> Any:
    """A float32 that storage of `kind` holds exactly."""
    if kind == F16:
        return _stochastic(value, 10, -14, 65504.0, noise)
    if kind == BF16:
        return _stochastic(value, 7, -126, 3.3895313892515355e38, noise)
    return value


@njit(nogil=True)
def store_short(address: int, value: Any, kind: int) -> None:
    """Write a float32 that storage of `kind` holds exactly."""
    if kind == F16:
        simd.store_half(address, value)
    else:
        simd.store_i16(address, np.int16(bits(value) >> 16))


@njit(nogil=True)
def mark_written(address: int) -> None:
    """Make the first element −0 if it is +0."""
    if simd.load_i32(address) == 0:
        simd.store_i32(address, _NEGATIVE_ZERO)


@njit(nogil=True)
def write(source: int, target: int, kind: int, dim: int, stream: int) -> None:
    """Store a row of float32; short types are rounded at random, from `stream`."""
    if kind == F32:
        copy(source, target, dim)
        mark_written(target)
        return
    for d in range(dim):
        noise = ((draw(stream, d) >> 11) & 0x1FFFFFFFFFFFFF) * 2.0**-53
        store_short(target + 2 * d, shorten(simd.load1(source + 4 * d), kind, noise), kind)
    if simd.load_i16(target) == 0:
        simd.store_i16(target, _NEGATIVE_ZERO_16)


@njit(nogil=True)
def key_of(table: int, row: int) -> int:
    """What a row is drawn by: its number in the whole table, or the key that it belongs to."""
    keys = simd.load_i64(table + 8 * KEYS)
    if keys != 0:
        return simd.load_i64(keys + 16 * row)
    return simd.load_i64(table + 8 * FIRST_ROW) + row


@njit(nogil=True)
def generate(table: int, parameters: int, row: int, target: int, dim: int) -> None:
    """Write the value of an untouched row as float32 at `target`; table and parameters are addresses."""
    first_column = simd.load_i64(table + 8 * FIRST_COLUMN)
    stream = row_stream(simd.load_i64(table + 8 * KEY), key_of(table, row))
    init, kind = simd.load_i64(table + 8 * INIT), simd.load_i64(table + 8 * KIND)
    p0, p1 = simd.load_f64(parameters), simd.load_f64(parameters + 8)
    p2, p3 = simd.load_f64(parameters + 16), simd.load_f64(parameters + 24)
    for d in range(dim):
        simd.store(
            target + 4 * d, shorten(element(init, p0, p1, p2, p3, stream, first_column + d), kind, 0.5)
        )
