"""AdamW."""

from __future__ import annotations

from torch.optim import AdamW, Optimizer

from recgrad.limits import Positive, Rate, Share
from recgrad.optim import usual_rates
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params, fuse


@DENSE_OPTIMIZERS.register("adamw_optimizer")
@usual_rates.ADAM
def adamw(
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
    """Adam with weight decay beside the update: w −= ηλw, then w −= η·m̂/(√v̂+ε).

    With amsgrad v is the largest v so far. torch.optim.AdamW runs it.

    Paper: Loshchilov and Hutter 2019, Decoupled weight decay regularization.

    Args:
        fused: torch's fused kernel; left out, wherever it is right.
        foreach: torch's loop over operations (true) or over tensors (false) in its place.
    """
    return fuse(
        AdamW,
        params,
        fused,
        foreach,
        lr=lr,
        betas=(beta1, beta2),
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=amsgrad,
    )
