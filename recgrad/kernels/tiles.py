"""Matrix products of blocks that lie in the cache, made of tiles of 6 × 16 numbers held in registers.

Weights lie in panels of 16 columns, each panel [inputs, 16]. Other matrices lie row after row, `_row`
bytes from one to the next: best an odd number of cache lines, so that a column of them spreads over the
whole cache. A tile that begins near the end of a block may run over it: buffers have SLACK
rows more, which hold nothing of worth.
"""

from __future__ import annotations

from numba import njit

from recgrad.kernels.simd import (
    LANES,
    LINE,
    add,
    lane,
    load1,
    load16,
    multiply_add,
    splat16,
    store,
)

TILE = 6
SLACK = TILE


@njit
def tile6(a, a_row, a_step, b, b_step, steps, c):  # type: ignore[no-untyped-def]
    """c + Σ_k a[r, k] · b[k, :] for six rows r."""
    c0, c1, c2, c3, c4, c5 = c, c, c, c, c, c
    for _ in range(steps):
        v = load16(b)
        c0 = multiply_add(splat16(load1(a)), v, c0)
        c1 = multiply_add(splat16(load1(a + a_row)), v, c1)
        c2 = multiply_add(splat16(load1(a + 2 * a_row)), v, c2)
        c3 = multiply_add(splat16(load1(a + 3 * a_row)), v, c3)
        c4 = multiply_add(splat16(load1(a + 4 * a_row)), v, c4)
        c5 = multiply_add(splat16(load1(a + 5 * a_row)), v, c5)
        a += a_step
        b += b_step
    return c0, c1, c2, c3, c4, c5


@njit
def tile3(a, a_row, a_step, b, b_step, steps, c):  # type: ignore[no-untyped-def]
    """The same for three rows, the last ones of a block."""
    c0, c1, c2 = c, c, c
    for _ in range(steps):
        v = load16(b)
        c0 = multiply_add(splat16(load1(a)), v, c0)
        c1 = multiply_add(splat16(load1(a + a_row)), v, c1)
        c2 = multiply_add(splat16(load1(a + 2 * a_row)), v, c2)
        a += a_step
        b += b_step
    return c0, c1, c2


@njit
def store_row(to, value, width):  # type: ignore[no-untyped-def]
    """The first `width` numbers of a vector."""
    if width >= LANES:
        store(to, value)
    else:
        for i in range(width):
            store(to + 4 * i, lane(value, i))


@njit
def add_to(to, value):  # type: ignore[no-untyped-def]
    """Add a vector to one in memory."""
    store(to, add(load16(to), value))


@njit
def add_rows(x, x_row, n, width, sums):  # type: ignore[no-untyped-def]
    """sums += Σ_t x[t, :]."""
    for p in range(0, 4 * width, LINE):
        c = load16(sums + p)
        for t in range(n):
            c = add(c, load16(x + t * x_row + p))
        store(sums + p, c)


@njit
def copy_rows(source, source_row, target, target_row, n, width):  # type: ignore[no-untyped-def]
    """n rows of `width` numbers from one place to another."""
    for t in range(n):
        a, b = source + t * source_row, target + t * target_row
        for i in range(0, width - LANES + 1, LANES):
            store(b + 4 * i, load16(a + 4 * i))
        for i in range(width - width % LANES, width):
            store(b + 4 * i, load1(a + 4 * i))
