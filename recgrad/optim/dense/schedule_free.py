"""The optimizers of the package schedulefree, as a run needs them."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from recgrad.optim.dense.optimizer import Params, check_range, keep_gradients_contiguous
from recgrad.optim.eager import eager


def schedule_free(
    kind: type[Optimizer], params: Params, *, lr: float, weight_decay: float, **options: Any
) -> Optimizer:
    """A schedule-free optimizer in its training mode, the one it must be in to make updates.

    Args:
        kind: the class.
        params: what it trains.
        lr: at least 0.
        weight_decay: at least 0.
        options: the rest; `momentum`, or the first of `betas`, mixes the average in and is
            between 0 and 1.
    """
    check_range("lr", lr, 0)
    check_range("weight_decay", weight_decay, 0)
    name, mixing = ("beta1", options["betas"][0]) if "betas" in options else ("momentum", options["momentum"])
    if not 0 < mixing < 1:
        raise ValueError(f"{name} must be between 0 and 1, got {mixing}")
    if "betas" in options:
        check_range("beta2", options["betas"][1], 0, 1, open_high=True)
    optimizer: Any = eager(kind)(params, lr=lr, weight_decay=weight_decay, **options)
    optimizer.train()
    made: Optimizer = optimizer
    # It writes into the gradients, which must then be tensors of their own.
    keep_gradients_contiguous(made)
    return made
