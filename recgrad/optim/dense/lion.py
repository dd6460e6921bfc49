"""Lion."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recgrad.limits import Rate, Share
from recgrad.optim import foreach, usual_rates
from recgrad.optim.dense.foreach import ForeachOptimizer
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params


@DENSE_OPTIMIZERS.register("lion_optimizer")
@usual_rates.LION
class Lion(ForeachOptimizer):
    """Lion: w −= η(sign(β1·m + (1−β1)g) + λw), and only then m = β2·m + (1−β2)g.

    The sign is taken of a mixture that the kept average does not hold yet; the sign of the
    updated m, or one β for both, would be Signum. Written here: torch has
    none, and this takes fewer passes over memory than pytorch_optimizer's.

    Paper: Chen et al. 2023, Symbolic discovery of optimization algorithms.
    """

    def __init__(
        self,
        params: Params,
        *,
        lr: Rate = 1e-4,
        beta1: Share = 0.9,
        beta2: Share = 0.99,
        weight_decay: Rate = 0.0,
        foreach: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": (beta1, beta2), "weight_decay": weight_decay}
        super().__init__(params, defaults, foreach=foreach)

    def init_state(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """m = 0."""
        return {"exp_avg": torch.zeros_like(parameter)}

    def update(
        self, params: list[Tensor], grads: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]
    ) -> None:
        """One update."""
        beta1, beta2 = group["betas"]
        averages = [state["exp_avg"] for state in states]
        signs = foreach.lerp(averages, grads, 1 - beta1)
        foreach.sign_(signs)
        if group["weight_decay"]:
            foreach.mul_(params, 1 - group["lr"] * group["weight_decay"])
        foreach.add_(params, signs, alpha=-group["lr"])
        foreach.lerp_(averages, grads, 1 - beta2)
