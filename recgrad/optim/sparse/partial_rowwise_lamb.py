"""LAMB whose second moment is one number a row."""

from __future__ import annotations

import numpy as np

from recgrad.optim.sparse.lamb import LambKind
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS
from recgrad.optim.sparse.rowwise import square_sum, subtract, trust_ratio
from recgrad.optim.sparse.rule import State, sparse_rule


@sparse_rule
def partial_rowwise_lamb(w, g, states, rows, dim, h):  # type: ignore[no-untyped-def]
    """v moving average of mean(g²); r = m̂/(√v̂ + ε) + λw; w −= η (‖w‖/‖r‖) r."""
    lr, unbias1, keep1, new1, keep2, new2 = h[0], h[1], h[2], h[3], h[4], h[5]
    unbias2, eps, l2, decoupled = h[6], h[7], h[8], h[9]
    first, second = states[0], states[1]
    for i in range(rows * dim):
        g[i] += l2 * w[i]
    for i in range(rows * dim):
        first[i] = keep1 * first[i] + new1 * g[i]
    for r in range(rows):
        v = keep2 * second[r] + new2 * (square_sum(g, r, dim) / np.float32(dim))
        second[r] = v
        factor = unbias1 / (np.sqrt(v * unbias2) + eps)
        step, m, row = g[r * dim : r * dim + dim], first[r * dim : r * dim + dim], w[r * dim : r * dim + dim]
        for d in range(dim):
            step[d] = factor * m[d] + decoupled * row[d]
        ratio = trust_ratio(np.sqrt(square_sum(w, r, dim)), np.sqrt(square_sum(g, r, dim)))
        subtract(w, g, r, dim, lr * ratio)


@SPARSE_OPTIMIZERS.register("partial_rowwise_lamb_optimizer")
class PartialRowWiseLamb(LambKind):
    """LAMB with v = β2 v + (1 − β2) mean(g²), one number a row."""

    rule = staticmethod(partial_rowwise_lamb)
    states = (State("exp_avg"), State("exp_avg_sq", per_row=True))
