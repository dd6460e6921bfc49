"""Adam."""

from __future__ import annotations

from torch.optim import Adam, Optimizer

from recgrad.limits import Positive, Rate, Share
from recgrad.optim import usual_rates
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params, fuse


@DENSE_OPTIMIZERS.register("adam_optimizer")
@usual_rates.ADAM
def adam(
    params: Params,
    *,
    lr: Rate = 0.002,
    beta1: Share = 0.9,
    beta2: Share = 0.999,
    weight_decay: Rate = 0.0,
    eps: Positive = 1e-8,
    amsgrad: bool = False,
    fused: bool | None = None,
    foreach: bool | None = None,
) -> Optimizer:
    """Adam: w −= η·m̂/(√v̂+ε), m and v bias-corrected averages of g and g², with λw added to g.

    With amsgrad v is the largest v so far (Reddi et al. 2018). torch.optim.Adam runs it.

    Paper: Kingma and Ba 2015, Adam: a method for stochastic optimization; amsgrad: Reddi et al. 2018.

    Args:
        fused: torch's fused kernel; left out, wherever it is right.
        foreach: torch's loop over operations (true) or over tensors (false) in its place.
    """
    return fuse(
        Adam,
        params,
        fused,
        foreach,
        lr=lr,
        betas=(beta1, beta2),
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=amsgrad,
    )
