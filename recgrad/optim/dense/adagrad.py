"""Adagrad."""

from __future__ import annotations

from torch.optim import Adagrad, Optimizer

from recgrad.limits import Positive, Rate
from recgrad.optim import usual_rates
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params, fuse


@DENSE_OPTIMIZERS.register("adagrad_optimizer")
@usual_rates.ADAGRAD
def adagrad(
    params: Params,
    *,
    lr: Rate = 0.002,
    weight_decay: Rate = 0.0,
    initial_accumulator_value: Rate = 0.0,
    eps: Positive = 1e-10,
    fused: bool | None = None,
    foreach: bool | None = None,
) -> Optimizer:
    """Adagrad: s += g², w −= ηg/(√s+ε), with λw added to g.

    s starts at initial_accumulator_value. torch.optim.Adagrad runs it.

    Paper: Duchi et al. 2011, Adaptive subgradient methods.

    Args:
        fused: torch's fused kernel; left out, wherever it is right.
        foreach: torch's loop over operations (true) or over tensors (false) in its place.
    """
    return fuse(
        Adagrad,
        params,
        fused,
        foreach,
        lr=lr,
        weight_decay=weight_decay,
        initial_accumulator_value=initial_accumulator_value,
        eps=eps,
    )
