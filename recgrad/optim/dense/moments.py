"""What the kin of Adam share: m and v, running averages of g and g², and the two ways to decay weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recgrad.optim import foreach


def no_moments(parameter: Tensor) -> dict[str, Any]:
    """The state before the first update: t = 0, m = v = 0."""
    return {
        "step": 0,
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }


def update_moments(
    states: list[dict[str, Any]], grads: list[Tensor], betas: tuple[float, float]
) -> tuple[list[Tensor], list[Tensor]]:
    """t += 1, m += (1−β1)(g−m), v = β2·v + (1−β2)·g², in place; returns m and v."""
    beta1, beta2 = betas
    m = [state["exp_avg"] for state in states]
    v = [state["exp_avg_sq"] for state in states]
    foreach.lerp_(m, grads, 1 - beta1)
    foreach.mul_(v, beta2)
    foreach.addcmul_(v, grads, grads, value=1 - beta2)
    for state in states:
        state["step"] += 1
    return m, v


def decay_weights(params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
    """The gradients with λw added to them; or as they are, when w −= ηλw is made beside the update."""
    decay = group["weight_decay"]
    if decay and group["decoupled_weight_decay"]:
        foreach.mul_(params, 1 - group["lr"] * decay)
    elif decay:
        return list(foreach.add(grads, params, alpha=decay))
    return grads
