"""RMSprop."""

from __future__ import annotations

from torch.optim import Optimizer, RMSprop

from recgrad.limits import Fraction, Positive, Rate, Share
from recgrad.optim import usual_rates
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params, as_groups
from recgrad.optim.eager import eager


@DENSE_OPTIMIZERS.register("rmsprop_optimizer")
@usual_rates.ADAM
def rmsprop(
    params: Params,
    *,
    lr: Rate = 0.002,
    alpha: Fraction = 0.99,
    eps: Positive = 1e-8,
    weight_decay: Rate = 0.0,
    momentum: Share = 0.0,
    centered: bool = False,
    foreach: bool = True,
) -> Optimizer:
    """RMSprop: v = αv + (1−α)g², w −= ηg/(√v+ε), with λw added to g.

    With momentum b = μb + g/(√v+ε), w −= ηb; centered takes v less the square of the average
    gradient. torch.optim.RMSprop runs it.

    Paper: Hinton 2012, lecture 6e of Neural networks for machine learning; centered: Graves 2013.

    Args:
        foreach: loop over operations (true) or over tensors (false).
    """
    return eager(RMSprop)(
        as_groups(params),
        lr=lr,
        alpha=alpha,
        eps=eps,
        weight_decay=weight_decay,
        momentum=momentum,
        centered=centered,
        foreach=foreach,
    )
