"""Adafactor."""

from __future__ import annotations

from torch.optim import Adafactor, Optimizer

from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params, as_groups


@DENSE_OPTIMIZERS.register("adafactor_optimizer")
def adafactor(
    params: Params,
    *,
    lr: float = 0.01,
    beta2_decay: float = -0.8,
    eps1: float | None = None,
    eps2: float = 1e-3,
    d: float = 1.0,
    weight_decay: float = 0.0,
    foreach: bool | None = None,
) -> Optimizer:
    """Adafactor: Adam without m, whose v for a matrix is kept as the means of its rows and columns.

    The rate is min(η, 1/√t)·max(eps2, RMS(w)), the update is divided by max(1, RMS(u)/d), and
    the average of squares has 1 − t^beta2_decay in the place of β2. Weight decay is beside the
    update. torch.optim.Adafactor runs it. Shazeer and Stern 2018.

    Args:
        eps1: the least square of a gradient; the machine epsilon of the type when left out.
        foreach: loop over operations (true) or over tensors (false); torch's choice when left out.
    """
    return Adafactor(
        as_groups(params),
        lr=lr,
        beta2_decay=beta2_decay,
        eps=(eps1, eps2),
        d=d,
        weight_decay=weight_decay,
        foreach=foreach,
    )
