"""Schedule-free AdamW."""

from __future__ import annotations

from schedulefree import AdamWScheduleFree
from torch.optim import Optimizer

from recgrad.limits import Inside, Positive, Rate, Share, Size
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params
from recgrad.optim.dense.schedule_free import schedule_free


@DENSE_OPTIMIZERS.register("schedule_free_adamw_optimizer")
def schedule_free_adamw(
    params: Params,
    *,
    lr: Rate = 0.0025,
    beta1: Inside = 0.9,
    beta2: Share = 0.999,
    eps: Positive = 1e-8,
    weight_decay: Rate = 0.0,
    warmup_steps: Size = 0,
    r: Rate = 0.0,
    weight_lr_power: Rate = 2.0,
    foreach: bool = True,
) -> Optimizer:
    """Schedule-free AdamW: z −= η(g/(√v̂+ε)+λy), with an average in the place of a schedule.

    y = (1−β1)z + β1x is where gradients are taken and what training sees; x is what is
    evaluated, exported and saved as the weights: the average of z with weights
    t^r·η_max^weight_lr_power. The package schedulefree runs it, and keeps y and z, from which
    x follows.

    Paper: Defazio et al. 2024, The road less scheduled.

    Args:
        beta1: between 0 and 1.
        warmup_steps: updates over which η rises in a straight line to lr.
        r: the power of t in the average.
        foreach: loop over operations (true) or over tensors (false).
    """
    return schedule_free(
        AdamWScheduleFree,
        params,
        lr=lr,
        betas=(beta1, beta2),
        eps=eps,
        weight_decay=weight_decay,
        warmup_steps=warmup_steps,
        r=r,
        weight_lr_power=weight_lr_power,
        foreach=foreach,
    )
