"""Schedule-free SGD."""

from __future__ import annotations

from schedulefree import SGDScheduleFree
from torch.optim import Optimizer

from recgrad.limits import Inside, Rate, Size
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params
from recgrad.optim.dense.schedule_free import schedule_free


@DENSE_OPTIMIZERS.register("schedule_free_sgd_optimizer")
def schedule_free_sgd(
    params: Params,
    *,
    lr: Rate = 1.0,
    momentum: Inside = 0.9,
    weight_decay: Rate = 0.0,
    warmup_steps: Size = 0,
    r: Rate = 0.0,
    weight_lr_power: Rate = 2.0,
    foreach: bool = True,
) -> Optimizer:
    """Schedule-free SGD: z −= η(g+λy), with an average in the place of a schedule.

    y = (1−β)z + βx is where gradients are taken and what training sees; x is what is
    evaluated, exported and saved as the weights: the average of z with weights
    t^r·η_max^weight_lr_power. The package schedulefree runs it, and keeps y and z, from which
    x follows.

    Paper: Defazio et al. 2024, The road less scheduled.

    Args:
        momentum: β, between 0 and 1.
        warmup_steps: updates over which η rises in a straight line to lr.
        r: the power of t in the average.
        foreach: loop over operations (true) or over tensors (false).
    """
    return schedule_free(
        SGDScheduleFree,
        params,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        warmup_steps=warmup_steps,
        r=r,
        weight_lr_power=weight_lr_power,
        foreach=foreach,
    )
