"""RMSprop on embedding rows (Tieleman and Hinton 2012)."""

from __future__ import annotations

from typing import Any

import numpy as np

from recgrad.limits import Rate, Share
from recgrad.optim import usual_rates
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS, Eps, SparseOptimizer
from recgrad.optim.sparse.rule import State, sparse_rule
from recgrad.optim.sparse.tables import Tables


@sparse_rule
def rmsprop(w, g, states, rows, dim, h):  # type: ignore[no-untyped-def]
    """v = αv + (1 − α)g²; w −= ηg/(√v + ε)."""
    lr, keep, new, eps = h[0], h[1], h[2], h[3]
    squares = states[0]
    for i in range(rows * dim):
        v = keep * squares[i] + new * g[i] * g[i]
        squares[i] = v
        w[i] -= lr * g[i] / (np.sqrt(v) + eps)


@SPARSE_OPTIMIZERS.register("rmsprop_optimizer")
@usual_rates.ADAM
class RMSprop(SparseOptimizer):
    """v = αv + (1 − α)g²; w −= ηg/(√v + ε)."""

    rule = staticmethod(rmsprop)
    whole_rows = False
    states = (State("square_avg"),)

    def __init__(
        self, tables: Tables, *, lr: Rate = 0.002, alpha: Share = 0.99, eps: Eps = 1e-8, **common: Any
    ) -> None:
        super().__init__(tables, {"lr": lr, "alpha": alpha, "eps": eps}, **common)

    @classmethod
    def scalars(cls, group: dict[str, Any], step: int) -> tuple[float, ...]:
        """η, α, 1 − α, ε."""
        return group["lr"], group["alpha"], 1 - group["alpha"], group["eps"]
