"""Gradients of weights by kernels of our own: sums over lots of rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from recgrad.nn.layer_products import LOT_ROWS, LOTS, new_matrix, weight_gradients

EPSILON = 2.0**-24


@pytest.fixture
def threads() -> Iterator[None]:
    """The number of threads is as it was afterwards."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("rows", "count", "units", "width"),
    [
        (0, 1, 5, 7),
        (3, 2, 16, 16),
        (LOT_ROWS, 1, 24, 50),
        (LOT_ROWS + 1, 1, 8, 9),  # a lot of one row
        (5000, 3, 40, 33),
        (LOTS * LOT_ROWS + 5, 1, 130, 70),  # larger lots, not more
    ],
)
def test_sums_over_lots_of_rows(threads: None, rows: int, count: int, units: int, width: int) -> None:
    torch.manual_seed(0)
    g, x = new_matrix(rows, count, units).normal_(), new_matrix(rows, count, width).normal_()
    g64, x64 = g.double().view(rows, count, units), x.double().view(rows, count, width)
    terms = torch.einsum("rcu,rcw->cuw", g64.abs(), x64.abs())
    found = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        weight, bias = weight_gradients(g, x, count, with_bias=True)
        assert bias is not None
        # What rounding can do follows the number of terms and the sum of their sizes.
        bound = (rows + 1) * EPSILON
        assert ((weight - torch.einsum("rcu,rcw->cuw", g64, x64)).abs() <= bound * terms).all()
        assert ((bias - g64.sum(0)).abs() <= bound * g64.abs().sum(0)).all()
        found.append((weight.clone(), bias.clone()))
        alone, none = weight_gradients(g, x, count, with_bias=False)
        assert none is None
        assert torch.equal(alone, weight)
    for weight, bias in found[1:]:
        assert torch.equal(weight, found[0][0])
        assert torch.equal(bias, found[0][1])
