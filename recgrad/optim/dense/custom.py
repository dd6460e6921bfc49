"""An optimizer of the user's own, or of another package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer

from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params


@DENSE_OPTIMIZERS.register("custom_optimizer")
def custom(parameters: Params, /, *, class_path: str, params: Mapping[str, Any] | None = None) -> Optimizer:
    """Any torch.optim.Optimizer class, named by its import path and made with params.

    Such as `class_path: "pytorch_optimizer.AdaBelief"`. Classes with `train()` and `eval()`
    methods (schedule-free ones) are evaluated at the weights that `eval()` gives. A list in
    params becomes a tuple, as betas want it.

    Args:
        class_path: the class, as `package.module.Class`.
        params: its keyword arguments.
    """
    found = DENSE_OPTIMIZERS.resolve(class_path)
    if not issubclass(found, Optimizer):
        raise ValueError(f"class_path must name a torch.optim.Optimizer class, got {class_path}")
    make: Callable[..., Optimizer] = found
    options = {key: tuple(v) if isinstance(v, list) else v for key, v in (params or {}).items()}
    return make(parameters, **options)
