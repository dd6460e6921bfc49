"""Adam whose second moment is one number a row."""

from __future__ import annotations

import numpy as np

from recgrad.optim import usual_rates
from recgrad.optim.sparse.adam import LazyOrDense
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS
from recgrad.optim.sparse.rowwise import square_sum, subtract
from recgrad.optim.sparse.rule import State, sparse_rule


@sparse_rule
def partial_rowwise_adam(w, g, states, rows, dim, h):  # type: ignore[no-untyped-def]
    """m moving average of g, v of mean(g²); w −= η m̂/(√v̂ + ε)."""
    rate, keep1, new1, keep2, new2, unbias2, eps = h[0], h[1], h[2], h[3], h[4], h[5], h[6]
    first, second = states[0], states[1]
    for r in range(rows):
        second[r] = keep2 * second[r] + new2 * (square_sum(g, r, dim) / np.float32(dim))
    for i in range(rows * dim):
        first[i] = keep1 * first[i] + new1 * g[i]
    for r in range(rows):
        subtract(w, first, r, dim, rate / (np.sqrt(second[r] * unbias2) + eps))


@sparse_rule
def dense_partial_rowwise_adam(w, g, states, rows, dim, h):  # type: ignore[no-untyped-def]
    """As `partial_rowwise_adam`; states[0] holds m, and leaves with the direction of the row, m/q(v)."""
    rate, keep1, new1, keep2, new2, eps = h[0], h[1], h[2], h[3], h[4], h[5]
    floor, spread, shift = h[6], h[7], h[8]
    first, second = states[0], states[1]
    for r in range(rows):
        second[r] = keep2 * second[r] + new2 * (square_sum(g, r, dim) / np.float32(dim))
    for i in range(rows * dim):
        first[i] = keep1 * first[i] + new1 * g[i]
    for r in range(rows):
        root = np.sqrt(second[r])
        subtract(w, first, r, dim, rate / (root + eps))
        below = root + floor
        if spread != 0:
            below -= spread / (root + shift)
        for i in range(r * dim, r * dim + dim):
            first[i] = first[i] / below


@SPARSE_OPTIMIZERS.register("partial_rowwise_adam_optimizer")
@usual_rates.SPARSE_ADAM
class PartialRowWiseAdam(LazyOrDense):
    """m = β1 m + (1 − β1) g; v = β2 v + (1 − β2) mean(g²), one number a row; w −= η m̂/(√v̂ + ε)."""

    rule = staticmethod(partial_rowwise_adam)
    dense_rule = staticmethod(dense_partial_rowwise_adam)
    states = (State("exp_avg"), State("exp_avg_sq", per_row=True))
