"""RAdam."""

from __future__ import annotations

from torch.optim import Optimizer, RAdam

from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params, as_groups


@DENSE_OPTIMIZERS.register("radam_optimizer")
def radam(
    params: Params,
    *,
    lr: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    foreach: bool | None = None,
) -> Optimizer:
    """RAdam: Adam whose steps are held back while v rests on few gradients.

    With ρ_t = ρ_∞ − 2tβ2^t/(1−β2^t), ρ_∞ = 2/(1−β2) − 1: while ρ_t ≤ 5 w −= η·m̂, then
    w −= η·r_t·m̂·√(1−β2^t)/(√v+ε), r_t = √((ρ_t−4)(ρ_t−2)ρ_∞/((ρ_∞−4)(ρ_∞−2)ρ_t)). λw is added
    to g, or taken from w beside the update when decoupled. torch.optim.RAdam runs it. Liu et
    al. 2020, whose bound of 4 is 5 in their code and torch's.

    Args:
        foreach: loop over operations (true) or over tensors (false); torch's choice when left out.
    """
    return RAdam(
        as_groups(params),
        lr=lr,
        betas=(beta1, beta2),
        eps=eps,
        weight_decay=weight_decay,
        decoupled_weight_decay=decoupled_weight_decay,
        foreach=foreach,
    )
