"""NAdam."""

from __future__ import annotations

from torch.optim import NAdam, Optimizer

from recgrad.limits import Positive, Rate, Share
from recgrad.optim import usual_rates
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params, as_groups
from recgrad.optim.eager import eager


@DENSE_OPTIMIZERS.register("nadam_optimizer")
@usual_rates.ADAM
def nadam(
    params: Params,
    *,
    lr: Rate = 0.002,
    beta1: Share = 0.9,
    beta2: Share = 0.999,
    eps: Positive = 1e-8,
    weight_decay: Rate = 0.0,
    momentum_decay: Rate = 0.004,
    decoupled_weight_decay: bool = False,
    foreach: bool = True,
) -> Optimizer:
    """NAdam: Adam with Nesterov's look ahead.

    μ_t = β1(1 − ½·0.96^(tψ)), ψ the momentum_decay; w −= η(μ_{t+1}·m/(1−Πμ_{≤t+1}) +
    (1−μ_t)·g/(1−Πμ_{≤t}))/(√v̂+ε). λw is added to g, or taken from w beside the update when
    decoupled. torch.optim.NAdam runs it.

    Paper: Dozat 2016, Incorporating Nesterov momentum into Adam.

    Args:
        foreach: loop over operations (true) or over tensors (false).
    """
    return eager(NAdam)(
        as_groups(params),
        lr=lr,
        betas=(beta1, beta2),
        eps=eps,
        weight_decay=weight_decay,
        momentum_decay=momentum_decay,
        decoupled_weight_decay=decoupled_weight_decay,
        foreach=foreach,
    )
