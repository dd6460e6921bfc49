"""Functions of vectors against numpy in float64."""

from __future__ import annotations

import numpy as np
from numba import njit

from recgrad.kernels.simd import load16, store
from recgrad.kernels.vector_math import exponential, sigmoid


@njit
def exp_all(x, out, n):
    for i in range(0, 4 * n, 64):
        store(out + i, exponential(load16(x + i)))


@njit
def sigmoid_all(x, out, n):
    for i in range(0, 4 * n, 64):
        store(out + i, sigmoid(load16(x + i)))


def apply(function, x):
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty_like(x)
    function(x.ctypes.data, out.ctypes.data, len(x))
    return out


def test_exp_is_right_to_two_units_of_the_last_place():
    x = np.linspace(-87, 88, 1 << 16).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(apply(exp_all, x) - exact) <= 2 * np.spacing(exact.astype(np.float32))).all()


def test_exp_of_numbers_out_of_range():
    x = np.zeros(16, np.float32)
    x[:4] = -np.inf, -200, 300, np.nan
    got = apply(exp_all, x)
    assert (got[:2] == got[0]).all()
    assert 0 < got[0] < 2e-38
    assert 1e38 < got[2] < np.inf
    assert np.isnan(got[3])
    assert (got[4:] == 1).all()


def test_sigmoid():
    x = np.linspace(-80, 80, 1 << 12).astype(np.float32)
    exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(apply(sigmoid_all, x), exact, rtol=4e-7)
