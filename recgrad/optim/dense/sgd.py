"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from torch.optim import SGD, Optimizer

from recgrad.limits import Fraction, Rate, Share
from recgrad.optim import usual_rates
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params, fuse


@DENSE_OPTIMIZERS.register("sgd_optimizer")
@usual_rates.SGD
def sgd(
    params: Params,
    *,
    lr: Rate = 0.002,
    momentum: Share = 0.9,
    weight_decay: Rate = 0.0,
    dampening: Fraction = 0.0,
    nesterov: bool = False,
    fused: bool | None = None,
    foreach: bool | None = None,
) -> Optimizer:
    """Gradient descent with momentum: b = μb + (1−τ)(g+λw), w −= ηb, or η(g+λw+μb) with nesterov.

    The first update sets b = g+λw, without the dampening τ. torch.optim.SGD runs it.

    Paper: Sutskever et al. 2013, On the importance of initialization and momentum in deep learning.

    Args:
        fused: torch's fused kernel; left out, wherever it is right.
        foreach: torch's loop over operations (true) or over tensors (false) in its place.
    """
    if nesterov and (not momentum or dampening):
        raise ValueError("nesterov needs a momentum above 0 and no dampening")
    optimizer = fuse(
        SGD,
        params,
        fused,
        foreach,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        dampening=dampening,
        nesterov=nesterov,
    )
    optimizer.register_step_pre_hook(_begin_late_momenta)
    return optimizer


def _begin_late_momenta(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Gives parameters whose first gradient comes late a momentum that ends as that gradient.

    torch's fused kernel fails when some parameters of a group have a momentum and some have
    none. The update makes μb + (1−τ)g of it, g with its weight decay, which must be g.
    """
    for group in optimizer.param_groups:
        if not (group["fused"] and group["momentum"]):
            continue
        params = [p for p in group["params"] if p.grad is not None]
        late = [p for p in params if optimizer.state[p].get("momentum_buffer") is None]
        if late and len(late) < len(params):
            share = group["dampening"] / group["momentum"]
            for p in late:
                first = p.grad + group["weight_decay"] * p.detach()
                optimizer.state[p]["momentum_buffer"] = first.mul_(share)
