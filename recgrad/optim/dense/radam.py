"""RAdam."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from recgrad.limits import Positive, Rate, Share
from recgrad.optim import foreach, usual_rates
from recgrad.optim.dense.foreach import ForeachOptimizer
from recgrad.optim.dense.moments import decay_weights, no_moments, update_moments
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params


@DENSE_OPTIMIZERS.register("radam_optimizer")
@usual_rates.ADAM
class RAdam(ForeachOptimizer):
    """RAdam: Adam whose steps are held back while v rests on few gradients.

    With ρ_t = ρ_∞ − 2tβ2^t/(1−β2^t), ρ_∞ = 2/(1−β2) − 1: while ρ_t ≤ 5 w −= η·m̂, then
    w −= η·r_t·m̂·√(1−β2^t)/(√v+ε), r_t = √((ρ_t−4)(ρ_t−2)ρ_∞/((ρ_∞−4)(ρ_∞−2)ρ_t)). λw is added
    to g, or taken from w beside the update when decoupled. The bound of 5 is that of the
    authors' code and torch; the paper has 4. Written here: torch.optim.RAdam has the same
    rules and takes half as long again.

    Paper: Liu et al. 2020, On the variance of the adaptive learning rate and beyond.
    """

    def __init__(
        self,
        params: Params,
        *,
        lr: Rate = 0.001,
        beta1: Share = 0.9,
        beta2: Share = 0.999,
        eps: Positive = 1e-8,
        weight_decay: Rate = 0.0,
        decoupled_weight_decay: bool = False,
        foreach: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": (beta1, beta2),
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults, foreach=foreach)

    def init_state(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """No updates yet, m = v = 0."""
        return no_moments(parameter)

    def update(
        self, params: list[Tensor], grads: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]
    ) -> None:
        """One update."""
        beta1, beta2 = group["betas"]
        grads = decay_weights(params, grads, group)
        m, v = update_moments(states, grads, group["betas"])
        steps = [state["step"] for state in states]
        rectified = [rectification(beta2, step) for step in steps]
        if all(r is None for r in rectified):
            foreach.add_(params, foreach.mul(m, [-group["lr"] / (1 - beta1**t) for t in steps]))
            return
        denominators = list(foreach.sqrt(v))
        foreach.add_(denominators, group["eps"])
        factors = []
        for i, (step, r) in enumerate(zip(steps, rectified)):
            factor = -group["lr"] / (1 - beta1**step)
            if r is None:
                denominators[i].fill_(1.0)
            factors.append(factor if r is None else factor * r * math.sqrt(1 - beta2**step))
        foreach.addcdiv_(params, m, denominators, factors)


def rectification(beta2: float, step: int) -> float | None:
    """r_t, or None while ρ_t ≤ 5."""
    rho_inf = 2 / (1 - beta2) - 1
    rho = rho_inf - 2 * step * beta2**step / (1 - beta2**step)
    if rho <= 5:
        return None
    return math.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
