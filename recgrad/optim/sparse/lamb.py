"""LAMB on embedding rows (You et al. 2020): Adam's step, as long as the row is."""

from __future__ import annotations

from typing import Any

import numpy as np

from recgrad.optim.sparse.adam import AdamKind, adam_scalars
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS, decay
from recgrad.optim.sparse.rowwise import square_sum, subtract, trust_ratio
from recgrad.optim.sparse.rule import State, sparse_rule


@sparse_rule
def lamb(w, g, states, rows, dim, h):  # type: ignore[no-untyped-def]
    """r = m̂/(√v̂ + ε) + λw; w −= η (‖w‖/‖r‖) r."""
    lr, unbias1, keep1, new1, keep2, new2 = h[0], h[1], h[2], h[3], h[4], h[5]
    unbias2, eps, l2, decoupled = h[6], h[7], h[8], h[9]
    first, second = states[0], states[1]
    for i in range(rows * dim):
        x = g[i] + l2 * w[i]
        m = keep1 * first[i] + new1 * x
        v = keep2 * second[i] + new2 * x * x
        first[i] = m
        second[i] = v
        g[i] = unbias1 * m / (np.sqrt(v * unbias2) + eps) + decoupled * w[i]
    for r in range(rows):
        ratio = trust_ratio(np.sqrt(square_sum(w, r, dim)), np.sqrt(square_sum(g, r, dim)))
        subtract(w, g, r, dim, lr * ratio)


class LambKind(AdamKind):
    """What the LAMB kinds have in common: weight decay is part of the step whose length is set."""

    decay_inside = True

    @classmethod
    def scalars(cls, group: dict[str, Any], step: int) -> tuple[float, ...]:
        """η, 1/(1 − β1ᵗ), β1, 1 − β1, β2, 1 − β2, 1/(1 − β2ᵗ), ε, λ of L2, λ of the step."""
        decoupled = group["weight_decay"] if group["weight_decay_mode"] == "DECOUPLE" else 0.0
        unbias1 = 1 / (1 - group["beta1"] ** step)
        return group["lr"], unbias1, *adam_scalars(group, step)[1:], decay(group)[0], decoupled


@SPARSE_OPTIMIZERS.register("lamb_optimizer")
class Lamb(LambKind):
    """r = m̂/(√v̂ + ε) + λw; w −= η (‖w‖/‖r‖) r, norms over the row; the ratio is 1 when either is 0."""

    rule = staticmethod(lamb)
    states = (State("exp_avg"), State("exp_avg_sq"))
