"""LARS on embedding rows (You et al. 2017): momentum whose rate follows the length of the row."""

from __future__ import annotations

from typing import Any

import numpy as np

from recgrad.limits import Positive, Rate, Share
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS, SparseOptimizer, decay
from recgrad.optim.sparse.rowwise import square_sum, trust_ratio
from recgrad.optim.sparse.rule import State, sparse_rule
from recgrad.optim.sparse.tables import Tables


@sparse_rule
def lars_sgd(w, g, states, rows, dim, h):  # type: ignore[no-untyped-def]
    """l = η η₀ ‖w‖/(‖g‖ + λ‖w‖); m = μm + l (g + λw); w −= m."""
    lr, trust, momentum, l2, decoupled = h[0], h[1], h[2], h[3], h[4]
    moving = states[0]
    for r in range(rows):
        norm = np.sqrt(square_sum(w, r, dim))
        below = np.sqrt(square_sum(g, r, dim))
        rate = lr * trust_ratio(trust * norm, below + l2 * norm if below > 0 else below)
        part, row, m = g[r * dim : r * dim + dim], w[r * dim : r * dim + dim], moving[r * dim : r * dim + dim]
        for d in range(dim):
            m[d] = momentum * m[d] + rate * (part[d] + l2 * row[d])
            row[d] -= m[d] + decoupled * row[d]


@SPARSE_OPTIMIZERS.register("lars_sgd_optimizer")
class LarsSGD(SparseOptimizer):
    """l = η η₀ ‖w‖/(‖g‖ + λ‖w‖), norms over the row; m = μm + l (g + λw); w −= m.

    η₀ is `trust_coefficient`. The trust ratio η₀‖w‖/(‖g‖ + λ‖w‖) is 1 when ‖w‖ or ‖g‖ is 0.
    """

    rule = staticmethod(lars_sgd)
    states = (State("momentum"),)
    decay_inside = True

    def __init__(
        self,
        tables: Tables,
        *,
        lr: Rate = 0.002,
        momentum: Share = 0.9,
        trust_coefficient: Positive = 0.001,
        **common: Any,
    ) -> None:
        own = {"lr": lr, "momentum": momentum, "trust_coefficient": trust_coefficient}
        super().__init__(tables, own, **common)

    @classmethod
    def scalars(cls, group: dict[str, Any], step: int) -> tuple[float, ...]:
        """η, η₀, μ, λ of L2, ηλ of decoupled decay."""
        return group["lr"], group["trust_coefficient"], group["momentum"], *decay(group)
