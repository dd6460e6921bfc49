"""Adam on embedding rows (Kingma and Ba 2015), with decoupled weight decay (Loshchilov and Hutter 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np

from recgrad.limits import Rate, Share
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS, Eps, SparseOptimizer
from recgrad.optim.sparse.rule import State, sparse_rule


@sparse_rule
def adam(w, g, states, rows, dim, h):  # type: ignore[no-untyped-def]
    """m, v moving averages of g, g²; w −= η m̂/(√v̂ + ε)."""
    rate, keep1, new1, keep2, new2, unbias2, eps = h[0], h[1], h[2], h[3], h[4], h[5], h[6]
    first, second = states[0], states[1]
    for i in range(rows * dim):
        m = keep1 * first[i] + new1 * g[i]
        v = keep2 * second[i] + new2 * g[i] * g[i]
        first[i] = m
        second[i] = v
        w[i] -= rate * m / (np.sqrt(v * unbias2) + eps)


def adam_scalars(group: dict[str, Any], step: int) -> tuple[float, ...]:
    """η/(1 − β1ᵗ), β1, 1 − β1, β2, 1 − β2, 1/(1 − β2ᵗ), ε."""
    beta1, beta2 = group["beta1"], group["beta2"]
    rate = group["lr"] / (1 - beta1**step)
    return rate, beta1, 1 - beta1, beta2, 1 - beta2, 1 / (1 - beta2**step), group["eps"]


class AdamKind(SparseOptimizer):
    """What optimizers with Adam's hyperparameters have in common."""

    default_decay_mode = "DECOUPLE"

    def __init__(
        self,
        tables: Any,
        *,
        lr: Rate = 0.002,
        beta1: Share = 0.9,
        beta2: Share = 0.999,
        eps: Eps = 1e-8,
        **common: Any,
    ) -> None:
        super().__init__(tables, {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps}, **common)

    @classmethod
    def scalars(cls, group: dict[str, Any], step: int) -> tuple[float, ...]:
        """See `adam_scalars`."""
        return adam_scalars(group, step)


@SPARSE_OPTIMIZERS.register("adam_optimizer")
class Adam(AdamKind):
    """m = β1 m + (1 − β1) g; v = β2 v + (1 − β2) g²; w −= η m̂/(√v̂ + ε).

    m̂ and v̂ are corrected for their start at zero by the table's number of updates; rows that
    a batch does not touch keep their averages.
    """

    rule = staticmethod(adam)
    whole_rows = False
    states = (State("exp_avg"), State("exp_avg_sq"))
