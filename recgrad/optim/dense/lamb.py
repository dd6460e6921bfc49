"""LAMB."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recgrad.limits import Positive, Rate, Share
from recgrad.optim import foreach
from recgrad.optim.dense.foreach import ForeachOptimizer
from recgrad.optim.dense.moments import no_moments, update_moments
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params


@DENSE_OPTIMIZERS.register("lamb_optimizer")
class Lamb(ForeachOptimizer):
    """LAMB: r = m̂/(√v̂+ε) + λw, w −= η·(‖w‖/‖r‖)·r, norms over each parameter tensor.

    The ratio is 1 when either norm is 0, so that a zero tensor can move. m and v are
    corrected for bias and nothing is clipped. Written here: torch has none,
    and pytorch_optimizer's clamps ‖w‖ to 10 and leaves v uncorrected.

    Paper: You et al. 2020, Large batch optimization for deep learning.
    """

    def __init__(
        self,
        params: Params,
        *,
        lr: Rate = 0.002,
        beta1: Share = 0.9,
        beta2: Share = 0.999,
        eps: Positive = 1e-6,
        weight_decay: Rate = 0.0,
        foreach: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": (beta1, beta2), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, foreach=foreach)

    def init_state(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """No updates yet, m = v = 0."""
        return no_moments(parameter)

    def update(
        self, params: list[Tensor], grads: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]
    ) -> None:
        """One update."""
        beta1, beta2 = group["betas"]
        m, v = update_moments(states, grads, group["betas"])
        # m̂/(√v̂+ε) = m·c/(√v + ε·√(1−β2^t)), with c = √(1−β2^t)/(1−β1^t).
        roots = [(1 - beta2 ** state["step"]) ** 0.5 for state in states]
        r = foreach.sqrt(v)
        foreach.add_(r, [group["eps"] * root for root in roots])
        foreach.reciprocal_(r)
        foreach.mul_(r, m)
        foreach.mul_(r, [root / (1 - beta1 ** s["step"]) for root, s in zip(roots, states)])
        if group["weight_decay"]:
            foreach.add_(r, params, alpha=group["weight_decay"])
        ratios = trust_ratios(foreach.norm(params), foreach.norm(r))
        foreach.mul_(r, [-group["lr"] * ratio for ratio in ratios])
        foreach.add_(params, r)


def trust_ratios(weights: Any, updates: Any) -> list[float]:
    """‖w‖/‖r‖ for each tensor, 1 where either is 0."""
    w, r = torch.stack(list(weights)), torch.stack(list(updates))
    ratios: list[float] = torch.where((w > 0) & (r > 0), w / r, 1.0).tolist()
    return ratios
