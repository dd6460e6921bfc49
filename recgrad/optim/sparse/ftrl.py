"""FTRL-proximal on embedding rows (McMahan et al. 2013)."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from recgrad.limits import Range, Rate
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS, SparseOptimizer
from recgrad.optim.sparse.rule import State, sparse_rule
from recgrad.optim.sparse.tables import Tables


@sparse_rule
def ftrl(w, g, states, rows, dim, h):  # type: ignore[no-untyped-def]
    """σ = (n′^p − n^p)/η; z += g − σw; w = −(z − sign(z) l1)/(n′^p/η + l2), or 0 where |z| ≤ l1."""
    over_lr, l1, l2, power = h[0], h[1], h[2], h[3]
    if over_lr == 0:
        return
    linear, squares = states[0], states[1]
    for i in range(rows * dim):
        old = squares[i]
        new = old + g[i] * g[i]
        if power == np.float32(0.5):
            before, after = np.sqrt(old), np.sqrt(new)
        else:
            before, after = old**power, new**power
        z = linear[i] + g[i] - (after - before) * over_lr * w[i]
        squares[i] = new
        linear[i] = z
        shrunk = z - l1 if z > l1 else (z + l1 if z < -l1 else z - z)
        denominator = after * over_lr + l2
        w[i] = -shrunk / denominator if denominator > 0 else -shrunk


@SPARSE_OPTIMIZERS.register("ftrl_optimizer")
class Ftrl(SparseOptimizer):
    """n += g²; z += g − (n′^p − n^p)/η · w; w = −(z − sign(z) l1)/(n′^p/η + l2), 0 where |z| ≤ l1.

    p = −lr_power; n starts at `initial_accumulator_value`, z at 0. The weight is a function of
    (z, n), so a row's initial value fades at its first update and decoupled weight decay has no
    meaning: use l2, or weight decay of mode L2.
    """

    rule = staticmethod(ftrl)
    whole_rows = False
    states = (State("linear"), State("sum", initial="initial_accumulator_value"))
    decay_modes = ("NONE", "L2")

    def __init__(
        self,
        tables: Tables,
        *,
        lr: Rate = 0.002,
        l1: Rate = 0.0,
        l2: Rate = 0.0,
        lr_power: Annotated[float, Range("(-∞, 0]")] = -0.5,
        initial_accumulator_value: Rate = 0.1,
        **common: Any,
    ) -> None:
        own = {"lr": lr, "l1": l1, "l2": l2, "lr_power": lr_power}
        own["initial_accumulator_value"] = initial_accumulator_value
        super().__init__(tables, own, **common)

    @classmethod
    def scalars(cls, group: dict[str, Any], step: int) -> tuple[float, ...]:
        """1/η, l1, l2, p; a rate of 0, which freezes the rows, is shown as 1/η = 0."""
        over_lr = 1 / group["lr"] if group["lr"] > 0 else 0.0
        return over_lr, group["l1"], group["l2"], -group["lr_power"]
