"""Adam on embedding rows (Kingma and Ba 2015), with decoupled weight decay (Loshchilov and Hutter 2019)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from recgrad.limits import Rate, Share
from recgrad.optim import usual_rates
from recgrad.optim.sparse.history import HEADING, SQUARE, STEP, History, check_lazy, divisor
from recgrad.optim.sparse.optimizer import LEAST_EPS, SPARSE_OPTIMIZERS, Eps, SparseOptimizer
from recgrad.optim.sparse.rule import State, sparse_rule
from recgrad.optim.sparse.tables import Tables


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


@sparse_rule
def dense_adam(w, g, states, rows, dim, h):  # type: ignore[no-untyped-def]
    """As `adam`; states[0] holds m, and leaves with the direction in which the row moves on, m/q(v)."""
    rate, keep1, new1, keep2, new2, eps = h[0], h[1], h[2], h[3], h[4], h[5]
    floor, spread, shift = h[6], h[7], h[8]
    first, second = states[0], states[1]
    if spread == 0:  # then floor is eps
        for i in range(rows * dim):
            m = keep1 * first[i] + new1 * g[i]
            v = keep2 * second[i] + new2 * g[i] * g[i]
            direction = m / (np.sqrt(v) + floor)
            first[i] = direction
            second[i] = v
            w[i] -= rate * direction
        return
    for i in range(rows * dim):
        m = keep1 * first[i] + new1 * g[i]
        v = keep2 * second[i] + new2 * g[i] * g[i]
        root = np.sqrt(v)
        first[i] = m / (root + floor - spread / (root + shift))
        second[i] = v
        w[i] -= rate * m / (root + eps)


def dense_adam_scalars(group: dict[str, Any], step: int) -> tuple[float, ...]:
    """η√(1 − β2ᵗ)/(1 − β1ᵗ), β1, 1 − β1, β2, 1 − β2, ε√(1 − β2ᵗ), and what q(v) is made of."""
    beta1, beta2 = group["beta1"], group["beta2"]
    root = math.sqrt(1 - beta2**step)
    rate = group["lr"] * root / (1 - beta1**step)
    eps = max(group["eps"] * root, LEAST_EPS)
    return rate, beta1, 1 - beta1, beta2, 1 - beta2, eps, *divisor(beta1, beta2, group["eps"], step)


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
        tables: Tables,
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


class LazyOrDense(AdamKind):
    """Adam kinds that leave the rows alone that a batch does not touch, or give dense Adam's result.

    Args:
        lazy: false lets a row that was left alone catch up with the updates that it missed when it is
            next read, as if the whole table had been updated each time.
    """

    def __init__(
        self,
        tables: Tables,
        *,
        lr: Rate = 0.002,
        beta1: Share = 0.9,
        beta2: Share = 0.999,
        eps: Eps = 1e-8,
        lazy: bool = True,
        **common: Any,
    ) -> None:
        settings = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "lazy": lazy}
        SparseOptimizer.__init__(self, tables, settings, **common)

    dense_rule: ClassVar[Any] = None

    @classmethod
    def rule_of(cls, group: dict[str, Any]) -> Any:
        """The rule that leaves m, or that leaves the direction of rows that move on."""
        return cls.rule if group.get("lazy", True) else cls.dense_rule

    @classmethod
    def scalars(cls, group: dict[str, Any], step: int) -> tuple[float, ...]:
        """See `adam_scalars` and `dense_adam_scalars`."""
        return adam_scalars(group, step) if group.get("lazy", True) else dense_adam_scalars(group, step)

    @classmethod
    def check(cls, group: dict[str, Any]) -> None:
        """Refuse also what untouched rows could not catch up with."""
        super().check(group)
        check_lazy(group)

    @classmethod
    def states_of(cls, group: dict[str, Any]) -> tuple[State, ...]:
        """The moments; or the direction, the second moments, and the update that touched a row last."""
        if group.get("lazy", True):
            return cls.states
        return State(HEADING), cls.states[1], State(STEP, per_row=True)

    @classmethod
    def needs_whole_rows(cls, group: dict[str, Any]) -> bool:
        """Rows that catch up have a number of their own."""
        return cls.whole_rows or not group.get("lazy", True)

    @classmethod
    def build_history(cls, group: dict[str, Any]) -> History | None:
        """Of a group that is not lazy."""
        return None if group.get("lazy", True) else History(group["beta2"], group["eps"])


@SPARSE_OPTIMIZERS.register("adam_optimizer")
@usual_rates.SPARSE_ADAM
class Adam(LazyOrDense):
    """m = β1 m + (1 − β1) g; v = β2 v + (1 − β2) g²; w −= η m̂/(√v̂ + ε).

    m̂ and v̂ are corrected for their start at zero by the table's number of updates. Rows that a batch
    does not touch keep their averages; with `lazy: false` they move on by them, as in dense Adam.
    """

    rule = staticmethod(adam)
    whole_rows = False
    dense_rule = staticmethod(dense_adam)
    states = (State("exp_avg"), State(SQUARE))
