"""Adadelta."""

from __future__ import annotations

from torch.optim import Adadelta, Optimizer

from recgrad.limits import Fraction, Positive, Rate
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params, as_groups
from recgrad.optim.eager import eager


@DENSE_OPTIMIZERS.register("adadelta_optimizer")
def adadelta(
    params: Params,
    *,
    lr: Rate = 0.002,
    rho: Fraction = 0.95,
    eps: Positive = 1e-6,
    weight_decay: Rate = 0.0,
    foreach: bool | None = None,
) -> Optimizer:
    """Adadelta: steps in the units of the weights, u = g·√(d+ε)/√(v+ε), w −= ηu, with λw added to g.

    v = ρv + (1−ρ)g² and then d = ρd + (1−ρ)u². torch.optim.Adadelta runs it.

    Paper: Zeiler 2012, ADADELTA: an adaptive learning rate method.

    Args:
        foreach: loop over operations (true) or over tensors (false); torch's choice when left out.
    """
    return eager(Adadelta)(
        as_groups(params),
        lr=lr,
        rho=rho,
        eps=eps,
        weight_decay=weight_decay,
        foreach=foreach,
    )
