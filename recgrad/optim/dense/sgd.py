"""Stochastic gradient descent."""

from __future__ import annotations

from torch.optim import SGD, Optimizer

from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params, fuse


@DENSE_OPTIMIZERS.register("sgd_optimizer")
def sgd(
    params: Params,
    *,
    lr: float = 0.002,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    fused: bool | None = None,
    foreach: bool | None = None,
) -> Optimizer:
    """Gradient descent with momentum: b = μb + (1−τ)(g+λw), w −= ηb, or η(g+λw+μb) with nesterov.

    The first update sets b = g+λw, without the dampening τ. torch.optim.SGD runs it.
    Sutskever et al. 2013.

    Args:
        fused: torch's fused kernel; left out, wherever it is right.
        foreach: torch's loop over operations (true) or over tensors (false) in its place.
    """
    return fuse(
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
