"""NAdam."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from recgrad.limits import Positive, Rate, Share
from recgrad.optim import foreach
from recgrad.optim.dense.foreach import ForeachOptimizer
from recgrad.optim.dense.moments import decay_weights, no_moments, update_moments
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params


@DENSE_OPTIMIZERS.register("nadam_optimizer")
class NAdam(ForeachOptimizer):
    """NAdam: Adam with Nesterov's look ahead.

    μ_t = β1(1 − ½·0.96^(tψ)), ψ the momentum_decay; w −= η(μ_{t+1}·m/(1−Πμ_{≤t+1}) +
    (1−μ_t)·g/(1−Πμ_{≤t}))/(√v̂+ε). λw is added to g, or taken from w beside the update when
    decoupled. Written here: torch.optim.NAdam has the same rules, but keeps the product of the
    μ in float32 and makes more copies on the way.

    Paper: Dozat 2016, Incorporating Nesterov momentum into Adam.
    """

    def __init__(
        self,
        params: Params,
        *,
        lr: Rate = 0.002,
        beta1: Share = 0.9,
        beta2: Share = 0.999,
        eps: Positive = 1e-8,
        weight_decay: Rate = 0.0,
        momentum_decay: Rate = 0.004,
        decoupled_weight_decay: bool = False,
        foreach: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": (beta1, beta2),
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults, foreach=foreach)

    def init_state(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """No updates yet, m = v = 0, Πμ = 1."""
        return {"mu_product": 1.0, **no_moments(parameter)}

    def update(
        self, params: list[Tensor], grads: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]
    ) -> None:
        """One update."""
        beta1, beta2 = group["betas"]
        grads = decay_weights(params, grads, group)
        m, v = update_moments(states, grads, group["betas"])
        of_gradient, of_average, roots = [], [], []
        for state in states:
            step = state["step"]
            mu, mu_next = (
                beta1 * (1 - 0.5 * 0.96 ** (t * group["momentum_decay"])) for t in (step, step + 1)
            )
            state["mu_product"] *= mu
            # 1/(√v̂+ε) = r/(√v+εr), r = √(1−β2^t).
            root = (1 - beta2**step) ** 0.5
            roots.append(root)
            of_gradient.append(-group["lr"] * root * (1 - mu) / (1 - state["mu_product"]))
            of_average.append(-group["lr"] * root * mu_next / (1 - state["mu_product"] * mu_next))
        denominators = list(foreach.sqrt(v))
        foreach.add_(denominators, [group["eps"] * root for root in roots])
        foreach.addcdiv_(params, grads, denominators, of_gradient)
        foreach.addcdiv_(params, m, denominators, of_average)
