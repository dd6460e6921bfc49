"""Adadelta on embedding rows (Zeiler 2012)."""

from __future__ import annotations

from typing import Any

import numpy as np

from recgrad.limits import Rate, Share
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS, Eps, SparseOptimizer
from recgrad.optim.sparse.rule import State, sparse_rule
from recgrad.optim.sparse.tables import Tables


@sparse_rule
def adadelta(w, g, states, rows, dim, h):  # type: ignore[no-untyped-def]
    """E[g²]; Δ = √(E[Δ²] + ε)/√(E[g²] + ε) · g; E[Δ²]; w −= ηΔ."""
    lr, keep, new, eps = h[0], h[1], h[2], h[3]
    squares, deltas = states[0], states[1]
    for i in range(rows * dim):
        s = keep * squares[i] + new * g[i] * g[i]
        delta = np.sqrt(deltas[i] + eps) / np.sqrt(s + eps) * g[i]
        squares[i] = s
        deltas[i] = keep * deltas[i] + new * delta * delta
        w[i] -= lr * delta


@SPARSE_OPTIMIZERS.register("adadelta_optimizer")
class Adadelta(SparseOptimizer):
    """s = ρs + (1 − ρ)g²; Δ = √(d + ε)/√(s + ε) · g; d = ρd + (1 − ρ)Δ²; w −= ηΔ."""

    rule = staticmethod(adadelta)
    whole_rows = False
    states = (State("square_avg"), State("acc_delta"))

    def __init__(
        self, tables: Tables, *, lr: Rate = 0.002, rho: Share = 0.95, eps: Eps = 1e-6, **common: Any
    ) -> None:
        super().__init__(tables, {"lr": lr, "rho": rho, "eps": eps}, **common)

    @classmethod
    def scalars(cls, group: dict[str, Any], step: int) -> tuple[float, ...]:
        """η, ρ, 1 − ρ, ε."""
        return group["lr"], group["rho"], 1 - group["rho"], group["eps"]
