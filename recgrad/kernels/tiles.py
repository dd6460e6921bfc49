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
    keep_positive,
    lane,
    load1,
    load16,
    multiply_add,
    splat16,
    store,
    zeros16,
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
def relu_product(x, x_row, panel, steps, c, out, out_row, n):  # type: ignore[no-untyped-def]
    """max(0, x · panel + c) of n rows, to a column of `out`."""
    for t in range(0, n, TILE):
        at, to = x + t * x_row, out + t * out_row
        if n - t > 3:
            c0, c1, c2, c3, c4, c5 = tile6(at, x_row, 4, panel, LINE, steps, c)
            store(to + 3 * out_row, keep_positive(c3, c3))
            store(to + 4 * out_row, keep_positive(c4, c4))
            store(to + 5 * out_row, keep_positive(c5, c5))
        else:
            c0, c1, c2 = tile3(at, x_row, 4, panel, LINE, steps, c)
        store(to, keep_positive(c0, c0))
        store(to + out_row, keep_positive(c1, c1))
        store(to + 2 * out_row, keep_positive(c2, c2))


@njit
def gated_product(x, x_row, panel, steps, gate, out, out_row, n):  # type: ignore[no-untyped-def]
    """x · panel of n rows where the gate is above 0, to a column of `out`; the gate lies as `out` does."""
    for t in range(0, n, TILE):
        at, to, by = x + t * x_row, out + t * out_row, gate + t * out_row
        if n - t > 3:
            c0, c1, c2, c3, c4, c5 = tile6(at, x_row, 4, panel, LINE, steps, zeros16())
            store(to + 3 * out_row, keep_positive(c3, load16(by + 3 * out_row)))
            store(to + 4 * out_row, keep_positive(c4, load16(by + 4 * out_row)))
            store(to + 5 * out_row, keep_positive(c5, load16(by + 5 * out_row)))
        else:
            c0, c1, c2 = tile3(at, x_row, 4, panel, LINE, steps, zeros16())
        store(to, keep_positive(c0, load16(by)))
        store(to + out_row, keep_positive(c1, load16(by + out_row)))
        store(to + 2 * out_row, keep_positive(c2, load16(by + 2 * out_row)))


@njit
def store_row(to, value, width):  # type: ignore[no-untyped-def]
    """The first `width` numbers of a vector."""
    if width >= LANES:
        store(to, value)
    else:
        for i in range(width):
            store(to + 4 * i, lane(value, i))


@njit
def scaled_row(to, c, weight, part, width):  # type: ignore[no-untyped-def]
    """The first `width` numbers of c + weight · part, with the weight at an address."""
    store_row(to, multiply_add(splat16(load1(weight)), part, c), width)


@njit
def product(x, x_row, panel, steps, weights, part, out, out_row, width, n):  # type: ignore[no-untyped-def]
    """x · panel + weights ⊗ part, exactly n rows of `width` columns."""
    for t in range(0, n, TILE):
        at, to, w = x + t * x_row, out + t * out_row, weights + 4 * t
        if n - t > 3:
            c0, c1, c2, c3, c4, c5 = tile6(at, x_row, 4, panel, LINE, steps, zeros16())
            scaled_row(to + 3 * out_row, c3, w + 12, part, width)
            if n - t > 4:
                scaled_row(to + 4 * out_row, c4, w + 16, part, width)
            if n - t > 5:
                scaled_row(to + 5 * out_row, c5, w + 20, part, width)
        else:
            c0, c1, c2 = tile3(at, x_row, 4, panel, LINE, steps, zeros16())
        scaled_row(to, c0, w, part, width)
        if n - t > 1:
            scaled_row(to + out_row, c1, w + 4, part, width)
        if n - t > 2:
            scaled_row(to + 2 * out_row, c2, w + 8, part, width)


@njit
def add_to(to, value):  # type: ignore[no-untyped-def]
    """Add a vector to one in memory."""
    store(to, add(load16(to), value))


@njit
def add_products(g, g_row, x, x_row, n, outputs, inputs, sums):  # type: ignore[no-untyped-def]
    """sums[j, :] += Σ_t g[t, j] · x[t, :]: the gradient of a weight."""
    row = 4 * inputs
    for p in range(0, inputs, LANES):
        for j in range(0, outputs, TILE):
            c0, c1, c2, c3, c4, c5 = tile6(g + 4 * j, 4, g_row, x + 4 * p, x_row, n, zeros16())
            to = sums + j * row + 4 * p
            add_to(to, c0)
            add_to(to + row, c1)
            add_to(to + 2 * row, c2)
            add_to(to + 3 * row, c3)
            add_to(to + 4 * row, c4)
            add_to(to + 5 * row, c5)


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
