"""LARS."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from recgrad.limits import Positive, Rate, Share
from recgrad.optim import foreach
from recgrad.optim.dense.foreach import ForeachOptimizer
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params


@DENSE_OPTIMIZERS.register("lars_optimizer")
class Lars(ForeachOptimizer):
    """LARS: l = η·c‖w‖/(‖g‖+λ‖w‖+ε), m = μm + l(g+λw), w −= m, norms over each parameter tensor.

    The ratio beside η is 1 when either norm is 0. Biases and norm scales (scalars and
    vectors, and what the config knows as norms) have neither ratio nor weight decay: l = η.
    With nesterov w −= μm + l(g+λw). Written here: torch has none, and
    pytorch_optimizer's keeps the rate outside the momentum.

    Paper: You et al. 2017, Large batch training of convolutional networks.

    Args:
        trust_coefficient: c.
        adapt: a parameter group's own say: whether its tensors have the ratio and weight
            decay; left out, matrices and larger tensors do.
    """

    excluded_options: ClassVar[dict[str, Any]] = {"adapt": False, "weight_decay": 0.0}

    def __init__(
        self,
        params: Params,
        *,
        lr: Rate = 0.1,
        momentum: Share = 0.9,
        weight_decay: Rate = 0.0,
        trust_coefficient: Positive = 0.001,
        eps: Positive = 1e-8,
        nesterov: bool = False,
        adapt: bool | None = None,
        foreach: bool = True,
    ) -> None:
        if nesterov and momentum == 0:
            raise ValueError("nesterov needs a momentum greater than 0, got 0")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "eps": eps,
            "nesterov": nesterov,
            "adapt": adapt,
        }
        super().__init__(params, defaults, foreach=foreach)

    def init_state(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """m = 0."""
        return {"momentum_buffer": torch.zeros_like(parameter)}

    def update(
        self, params: list[Tensor], grads: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]
    ) -> None:
        """One update."""
        adapted = [p.ndim > 1 if group["adapt"] is None else group["adapt"] for p in params]
        decays = [group["weight_decay"] if adapt else 0.0 for adapt in adapted]
        rates = self._local_rates(params, grads, adapted, group)
        buffers = [state["momentum_buffer"] for state in states]
        if any(decays):
            steps = foreach.mul(params, decays)
            foreach.add_(steps, grads)
            foreach.mul_(steps, rates)
        else:
            steps = foreach.mul(grads, rates)
        foreach.mul_(buffers, group["momentum"])
        foreach.add_(buffers, steps)
        if group["nesterov"]:
            foreach.add_(steps, buffers, alpha=group["momentum"])
            foreach.sub_(params, steps)
        else:
            foreach.sub_(params, buffers)

    @staticmethod
    def _local_rates(
        params: list[Tensor], grads: list[Tensor], adapted: list[bool], group: dict[str, Any]
    ) -> list[float]:
        w = torch.stack(list(foreach.norm(params)))
        g = torch.stack(list(foreach.norm(grads)))
        trust = group["trust_coefficient"] * w / (g + group["weight_decay"] * w + group["eps"])
        trust = torch.where((w > 0) & (g > 0), trust, 1.0)
        return [group["lr"] * (t if adapt else 1.0) for t, adapt in zip(trust.tolist(), adapted)]
