"""Sums over the elements of each row, for rules that keep one number a row or scale rows by norms."""

from __future__ import annotations

import numpy as np

from recgrad.optim.sparse.rule import sparse_rule


@sparse_rule
def square_sum(x, row, dim):  # type: ignore[no-untyped-def]
    """Σ x² over one row."""
    total = np.float32(0)
    part = x[row * dim : row * dim + dim]
    for d in range(dim):
        total += part[d] * part[d]
    return total


@sparse_rule
def subtract(w, x, row, dim, factor):  # type: ignore[no-untyped-def]
    """w −= factor · x over one row."""
    to, part = w[row * dim : row * dim + dim], x[row * dim : row * dim + dim]
    for d in range(dim):
        to[d] -= factor * part[d]


@sparse_rule
def trust_ratio(a, b):  # type: ignore[no-untyped-def]
    """a/b, or 1 when either is 0, so that a zero row can move and a zero gradient gives no NaN."""
    return a / b if a > 0 and b > 0 else np.float32(1)
