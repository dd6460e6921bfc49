"""Adagrad on embedding rows (Duchi et al. 2011)."""

from __future__ import annotations

from typing import Any

import numpy as np

from recgrad.limits import Rate
from recgrad.optim import usual_rates
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS, Eps, SparseOptimizer
from recgrad.optim.sparse.rule import State, sparse_rule
from recgrad.optim.sparse.tables import Tables


@sparse_rule
def adagrad(w, g, states, rows, dim, h):  # type: ignore[no-untyped-def]
    """s += g²; w −= ηg/(√s + ε)."""
    lr, eps = h[0], h[1]
    total = states[0]
    for i in range(rows * dim):
        s = total[i] + g[i] * g[i]
        total[i] = s
        w[i] -= lr * g[i] / (np.sqrt(s) + eps)


@SPARSE_OPTIMIZERS.register("adagrad_optimizer")
@usual_rates.ADAGRAD
class Adagrad(SparseOptimizer):
    """s += g²; w −= ηg/(√s + ε), for each element; s starts at `initial_accumulator_value`."""

    rule = staticmethod(adagrad)
    whole_rows = False
    states = (State("sum", initial="initial_accumulator_value"),)

    def __init__(
        self,
        tables: Tables,
        *,
        lr: Rate = 0.002,
        eps: Eps = 1e-8,
        initial_accumulator_value: Rate = 0.0,
        **common: Any,
    ) -> None:
        own = {"lr": lr, "eps": eps, "initial_accumulator_value": initial_accumulator_value}
        super().__init__(tables, own, **common)

    @classmethod
    def scalars(cls, group: dict[str, Any], step: int) -> tuple[float, ...]:
        """η, ε."""
        return group["lr"], group["eps"]
