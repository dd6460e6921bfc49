"""Lion on embedding rows (Chen et al. 2023)."""

from __future__ import annotations

from typing import Any

import numpy as np

from recgrad.limits import Rate, Share
from recgrad.optim import usual_rates
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS, SparseOptimizer
from recgrad.optim.sparse.rule import State, sparse_rule
from recgrad.optim.sparse.tables import Tables


@sparse_rule
def lion(w, g, states, rows, dim, h):  # type: ignore[no-untyped-def]
    """u = sign(β1 m + (1 − β1)g); w −= ηu; m = β2 m + (1 − β2)g."""
    lr, keep1, new1, keep2, new2 = h[0], h[1], h[2], h[3], h[4]
    moving = states[0]
    for i in range(rows * dim):
        mixed = keep1 * moving[i] + new1 * g[i]
        moving[i] = keep2 * moving[i] + new2 * g[i]
        w[i] -= lr * mixed if np.isnan(mixed) else lr * ((mixed > 0) - np.float32(mixed < 0))


@SPARSE_OPTIMIZERS.register("lion_optimizer")
@usual_rates.LION
class Lion(SparseOptimizer):
    """u = sign(β1 m + (1 − β1)g); w −= η(u + λw); then m = β2 m + (1 − β2)g. Weight decay decouples."""

    rule = staticmethod(lion)
    whole_rows = False
    states = (State("exp_avg"),)
    default_decay_mode = "DECOUPLE"

    def __init__(
        self, tables: Tables, *, lr: Rate = 0.0003, beta1: Share = 0.9, beta2: Share = 0.99, **common: Any
    ) -> None:
        super().__init__(tables, {"lr": lr, "beta1": beta1, "beta2": beta2}, **common)

    @classmethod
    def scalars(cls, group: dict[str, Any], step: int) -> tuple[float, ...]:
        """η, β1, 1 − β1, β2, 1 − β2."""
        beta1, beta2 = group["beta1"], group["beta2"]
        return group["lr"], beta1, 1 - beta1, beta2, 1 - beta2
