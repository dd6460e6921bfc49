"""Products by tiles of any shape against float64, and which shapes a processor gets."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from numba import njit

from recgrad.kernels.products import NARROW, TILES, WIDE, compiled_features, finishing, make_tiles, tile_rows
from recgrad.kernels.simd import LANES, LINE, add, load16, store


@finishing()
def store_plain(row, column, value, to):
    out, out_row = to
    store(out + row * out_row + LINE * column, value)


@finishing()
def add_plain(row, column, value, to):
    out, out_row = to
    at = out + row * out_row + LINE * column
    store(at, add(load16(at), value))


def drivers(tiles):
    product, product_from = tiles.product, tiles.product_from

    @njit
    def plain(a, a_row, a_step, b, b_vector, b_step, steps, n, first, end, out, out_row):
        product(add_plain, (out, out_row), a, a_row, a_step, b, b_vector, b_step, steps, n, first, end)

    @njit
    def biased(a, a_row, a_step, b, b_vector, b_step, steps, start, n, first, end, out, out_row):
        to = (out, out_row)
        product_from(store_plain, to, a, a_row, a_step, b, b_vector, b_step, steps, start, n, first, end)

    return plain, biased


def whole_numbers(rng, *shape):
    """Their products and sums are exact in float32, in any order."""
    return rng.integers(-3, 4, shape).astype(np.float32)


@pytest.fixture(scope="module", params=[NARROW, WIDE], ids=["narrow", "wide"])
def tiles(request):
    made = make_tiles(request.param)
    return made, *drivers(made)


SIZES = [(1, 1, 1), (5, 3, 2), (6, 48, 3), (7, 2, 4), (12, 5, 5), (25, 17, 6), (13, 9, 7), (50, 31, 16)]


def test_any_size(tiles):
    made, plain, biased = tiles
    rng = np.random.default_rng(0)
    for n, steps, vectors in SIZES:
        width = vectors * LANES
        a, b = whole_numbers(rng, n + made.slack, steps), whole_numbers(rng, steps, width)
        panels = np.ascontiguousarray(b.reshape(steps, vectors, LANES).transpose(1, 0, 2))
        bias, out = whole_numbers(rng, width), np.zeros((n + made.slack, width), np.float32)
        row = out.strides[0]
        address = (a.ctypes.data, a.strides[0], 4, panels.ctypes.data, panels.strides[0], LINE, steps)
        biased(*address, bias.ctypes.data, n, 0, vectors, out.ctypes.data, row)
        exact = a[:n].astype(np.float64) @ b
        np.testing.assert_array_equal(out[:n], exact + bias)
        # A weight's gradient: what was summed over becomes the rows. Columns from the second on.
        sums = np.ones((steps + made.slack, width), np.float32)
        wide = np.zeros((n, steps + made.slack), np.float32)
        wide[:, :steps] = a[:n]
        g = whole_numbers(rng, n, width)
        first = min(1, vectors - 1)
        plain(
            wide.ctypes.data, 4, wide.strides[0], g.ctypes.data + LINE * first, LINE, g.strides[0],
            n, steps, first, vectors, sums.ctypes.data, sums.strides[0],
        )  # fmt: skip
        expected = np.ones((steps, width))
        expected[:, first * LANES :] += (a[:n].T.astype(np.float64) @ g)[:, first * LANES :]
        np.testing.assert_array_equal(sums[:steps], expected)


def test_groups_take_all_columns_and_no_more_than_fit(tiles):
    made = tiles[0]
    for columns in range(1, 40):
        left = columns
        while left:
            taken = made.group(left)
            assert 1 <= taken <= min(left, made.most)
            left -= taken


def test_processors_get_the_tiles_that_their_registers_hold():
    assert tile_rows("+sse2,+avx2,+fma") == NARROW
    assert tile_rows("-avx512f,+avx2") == NARROW
    assert tile_rows("+avx2,+avx512f,+avx512vl") == WIDE
    assert TILES.most == max(tile_rows(compiled_features()))
    for rows, registers in ((WIDE, 32), (NARROW, 8)):  # a vector takes two of AVX2's sixteen
        for vectors, count in rows.items():
            assert count * vectors + vectors < registers


ATTENTION = """
import sys
import recgrad.kernels.products as products
products.TILES = products.make_tiles({rows})
sys.path.insert(0, {tests!r})
from nn.test_mlp_attention import check
check([3, 0, 5, 1, 129, 7, 0, 300, 6, 12], 48, [80, 64])
check([3, 0, 50, 1], 17, [33, 20, 5])
"""


@pytest.mark.slow
@pytest.mark.parametrize("rows", [{4: 2, 3: 4, 2: 4, 1: 4}])
def test_attention_is_right_with_groups_of_any_number_of_columns(rows, request):
    """As on processors of wide registers, but with tiles of few rows, which are compiled sooner."""
    code = ATTENTION.format(rows=rows, tests=str(request.config.rootpath / "tests"))
    subprocess.run([sys.executable, "-c", code], check=True)
