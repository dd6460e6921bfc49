"""The optimizers of the package schedulefree, as a run needs them."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from recgrad.optim.dense.optimizer import Params, keep_gradients_contiguous
from recgrad.optim.eager import eager


def schedule_free(kind: type[Optimizer], params: Params, **options: Any) -> Optimizer:
    """A schedule-free optimizer in its training mode, the one it must be in to make updates.

    Args:
        kind: the class.
        params: what it trains.
        options: its keyword arguments.
    """
    optimizer: Any = eager(kind)(params, **options)
    optimizer.train()
    made: Optimizer = optimizer
    # It writes into the gradients, which must then be tensors of their own.
    keep_gradients_contiguous(made)
    return made
