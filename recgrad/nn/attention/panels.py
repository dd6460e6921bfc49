"""Keys and values as panels of sixteen positions, and products with them.

Most rows of users are shorter than a panel. Where at most eight of its positions are there, half of it is
made and multiplied.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import njit, types
from numba.extending import intrinsic

from recgrad.kernels.simd import LANES, LINE, add, load, load1, multiply_add, splat, store, zeros8

HALF = LANES // 2
_FLOATS = ir.VectorType(ir.FloatType(), HALF)
_I32, _I64 = ir.IntType(32), ir.IntType(64)
# Pairs of rows, of pairs and of halves are interleaved: three steps from rows to columns.
_STEPS = (
    (1, (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)),
    (2, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)),
    (4, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)),
)
_ORDER = (0, 2, 1, 3, 4, 6, 5, 7)  # where the columns are then


@intrinsic
def transpose8(context: Any, source: Any, row: Any, last: Any, target: Any, step: Any) -> Any:
    """Eight rows of eight float32, `row` bytes apart, as columns of eight lines that are `step` bytes apart.

    Rows after `last` are not read: that one stands for them.
    """

    def generate(context: Any, b: Any, _: Any, args: Any) -> Any:
        source, row, last, target, step = args
        rows = []
        for i in range(HALF):
            number = b.select(b.icmp_signed("<", _I64(i), last), _I64(i), last)
            at = b.inttoptr(b.add(source, b.mul(number, row)), _FLOATS.as_pointer())
            rows.append(b.load(at, align=4))
        for i, line in enumerate(_transposed(b, rows)):
            at = b.inttoptr(b.add(target, b.mul(step, _I64(i))), _FLOATS.as_pointer())
            b.store(line, at, align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def _transposed(b: Any, rows: list[Any]) -> list[Any]:
    """Eight vectors as the columns of eight."""
    pattern = ir.VectorType(_I32, HALF)
    for apart, low, high in _STEPS:
        mixed = list(rows)
        for i in range(HALF):
            if i & apart:
                continue
            one, other = rows[i], rows[i + apart]
            mixed[i] = b.shuffle_vector(one, other, ir.Constant(pattern, list(low)))
            mixed[i + apart] = b.shuffle_vector(one, other, ir.Constant(pattern, list(high)))
        rows = mixed
    return [rows[i] for i in _ORDER]


@njit
def make_panels(x, x_row, n, width, panels):  # type: ignore[no-untyped-def]
    """x [n, width] as panels of 16 rows, each [width, 16]; a half that no row is in is left as it was."""
    for t in range(0, n, LANES):
        panel = panels + 4 * t * width
        for half in range(0, min(n - t, LANES), HALF):
            at, last = x + (t + half) * x_row, min(n - t - half, HALF) - 1
            for i in range(0, width, HALF):
                transpose8(at + 4 * i, x_row, last, panel + LINE * i + 4 * half, LINE)


@njit
def half_tile12(a, a_row, b, steps):  # type: ignore[no-untyped-def]
    """Σ_k a[r, k] · b[k, :8] for twelve rows r."""
    c0, c1, c2, c3, c4, c5 = zeros8(), zeros8(), zeros8(), zeros8(), zeros8(), zeros8()
    d0, d1, d2, d3, d4, d5 = zeros8(), zeros8(), zeros8(), zeros8(), zeros8(), zeros8()
    other = a + 6 * a_row
    for _ in range(steps):
        v = load(zeros8(), b)
        c0 = multiply_add(splat(v, load1(a)), v, c0)
        c1 = multiply_add(splat(v, load1(a + a_row)), v, c1)
        c2 = multiply_add(splat(v, load1(a + 2 * a_row)), v, c2)
        c3 = multiply_add(splat(v, load1(a + 3 * a_row)), v, c3)
        c4 = multiply_add(splat(v, load1(a + 4 * a_row)), v, c4)
        c5 = multiply_add(splat(v, load1(a + 5 * a_row)), v, c5)
        d0 = multiply_add(splat(v, load1(other)), v, d0)
        d1 = multiply_add(splat(v, load1(other + a_row)), v, d1)
        d2 = multiply_add(splat(v, load1(other + 2 * a_row)), v, d2)
        d3 = multiply_add(splat(v, load1(other + 3 * a_row)), v, d3)
        d4 = multiply_add(splat(v, load1(other + 4 * a_row)), v, d4)
        d5 = multiply_add(splat(v, load1(other + 5 * a_row)), v, d5)
        a += 4
        other += 4
        b += LINE
    return c0, c1, c2, c3, c4, c5, d0, d1, d2, d3, d4, d5


@njit
def half_tile6(a, a_row, b, steps):  # type: ignore[no-untyped-def]
    """The same for six rows, with even and odd steps apart, as one sum would wait for itself."""
    c0, c1, c2, c3, c4, c5 = zeros8(), zeros8(), zeros8(), zeros8(), zeros8(), zeros8()
    d0, d1, d2, d3, d4, d5 = zeros8(), zeros8(), zeros8(), zeros8(), zeros8(), zeros8()
    for _ in range(0, steps, 2):
        v = load(zeros8(), b)
        w = load(zeros8(), b + LINE)
        c0 = multiply_add(splat(v, load1(a)), v, c0)
        c1 = multiply_add(splat(v, load1(a + a_row)), v, c1)
        c2 = multiply_add(splat(v, load1(a + 2 * a_row)), v, c2)
        c3 = multiply_add(splat(v, load1(a + 3 * a_row)), v, c3)
        c4 = multiply_add(splat(v, load1(a + 4 * a_row)), v, c4)
        c5 = multiply_add(splat(v, load1(a + 5 * a_row)), v, c5)
        d0 = multiply_add(splat(v, load1(a + 4)), w, d0)
        d1 = multiply_add(splat(v, load1(a + 4 + a_row)), w, d1)
        d2 = multiply_add(splat(v, load1(a + 4 + 2 * a_row)), w, d2)
        d3 = multiply_add(splat(v, load1(a + 4 + 3 * a_row)), w, d3)
        d4 = multiply_add(splat(v, load1(a + 4 + 4 * a_row)), w, d4)
        d5 = multiply_add(splat(v, load1(a + 4 + 5 * a_row)), w, d5)
        a += 8
        b += 2 * LINE
    return add(c0, d0), add(c1, d1), add(c2, d2), add(c3, d3), add(c4, d4), add(c5, d5)


@njit
def store6(to, row, c0, c1, c2, c3, c4, c5):  # type: ignore[no-untyped-def]
    """Six vectors, `row` bytes apart."""
    store(to, c0)
    store(to + row, c1)
    store(to + 2 * row, c2)
    store(to + 3 * row, c3)
    store(to + 4 * row, c4)
    store(to + 5 * row, c5)
