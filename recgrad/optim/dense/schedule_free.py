"""The optimizers of the package schedulefree, as a run needs them."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from recgrad.optim.bounds import at_least, below_one, inside_unit
from recgrad.optim.dense.optimizer import Params, keep_gradients_contiguous
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
    at_least(lr, 0, "lr")
    at_least(weight_decay, 0, "weight_decay")
    name, mixing = ("beta1", options["betas"][0]) if "betas" in options else ("momentum", options["momentum"])
    inside_unit(mixing, name)
    if "betas" in options:
        below_one(options["betas"][1], "beta2")
    optimizer: Any = eager(kind)(params, lr=lr, weight_decay=weight_decay, **options)
    optimizer.train()
    made: Optimizer = optimizer
    # It writes into the gradients, which must then be tensors of their own.
    keep_gradients_contiguous(made)
    return made
