"""Stochastic gradient descent on embedding rows."""

from __future__ import annotations

from typing import Any

from recgrad.limits import Rate
from recgrad.optim import usual_rates
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS, SparseOptimizer
from recgrad.optim.sparse.rule import sparse_rule
from recgrad.optim.sparse.tables import Tables


@sparse_rule
def sgd(w, g, states, rows, dim, h):  # type: ignore[no-untyped-def]
    """w −= ηg."""
    lr = h[0]
    for i in range(rows * dim):
        w[i] -= lr * g[i]


@SPARSE_OPTIMIZERS.register("sgd_optimizer")
@usual_rates.SGD
class SGD(SparseOptimizer):
    """w −= ηg."""

    rule = staticmethod(sgd)
    whole_rows = False

    def __init__(self, tables: Tables, *, lr: Rate = 0.002, **common: Any) -> None:
        super().__init__(tables, {"lr": lr}, **common)

    @classmethod
    def scalars(cls, group: dict[str, Any], step: int) -> tuple[float, ...]:
        """η."""
        return (group["lr"],)
