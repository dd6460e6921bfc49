"""What a dense optimizer is: a callable that makes a torch.optim.Optimizer from config fields.

An entry of the registry is a class or a function `(params, *, lr, …) -> Optimizer` whose
keyword arguments are the fields of its config message, so that config and Python say the same.
It may carry attributes that the grouping of parameters and the check read:

- `fallback`: what is not a hidden matrix goes to this one (AdamW), built from the
  message's `fallback_*` fields (Muon, SOAP);
- `excluded_options`: options of the parameter group that biases and norm scales are put in (LARS);
- `usual_rates`: the learning rates that are usual for it, which a hint of the check compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from recgrad.optim.eager import eager
from recgrad.registry import Registry

Params: TypeAlias = Iterable[Tensor] | Iterable[dict[str, Any]]
Factory: TypeAlias = Callable[..., Optimizer]

DENSE_OPTIMIZERS: Registry[Factory] = Registry("dense optimizer", "recgrad.optim.dense")


def as_groups(params: Params) -> list[dict[str, Any]]:
    """Parameters, or groups of them, as a list of groups."""
    items: list[Any] = list(params)
    if items and isinstance(items[0], dict):
        return [{**group, "params": list(group["params"])} for group in items]
    return [{"params": items}]


def fused_option(groups: Sequence[dict[str, Any]], fused: bool | None) -> bool:
    """Whether to run torch's fused kernel.

    `None` takes it wherever it is right: on a CPU it is several times faster than the loops,
    but its kernels walk memory as if every tensor were contiguous and silently give wrong
    weights for one that is not. `True` insists, and raises for such a tensor.
    """
    params = [p for group in groups for p in group["params"]]
    unfit = next((p for p in params if not (p.is_contiguous() and torch.is_floating_point(p))), None)
    if fused and unfit is not None:
        raise ValueError(
            "fused needs contiguous floating-point parameters, got one of "
            f"shape {tuple(unfit.shape)}, strides {unfit.stride()} and {unfit.dtype}"
        )
    return unfit is None if fused is None else fused


def keep_gradients_contiguous(optimizer: Optimizer) -> None:
    """Has an optimizer copy gradients that are not contiguous before each step."""

    def hook(running: Optimizer, args: Any, kwargs: Any) -> None:
        for group in running.param_groups:
            for p in group["params"]:
                if p.grad is not None and not p.grad.is_contiguous():
                    p.grad = p.grad.contiguous()

    optimizer.register_step_pre_hook(hook)


def fuse(
    kind: type[Optimizer], params: Params, fused: bool | None, foreach: bool | None, **options: Any
) -> Optimizer:
    """An optimizer of torch with its fused kernel where that is asked for or safe.

    A `foreach` that is set chooses between torch's other two loops instead.
    """
    groups = as_groups(params)
    if fused is None and foreach is not None:
        fused = False
    use_fused = fused_option(groups, fused)
    optimizer = eager(kind)(groups, fused=use_fused, foreach=foreach, **options)
    if use_fused:
        keep_gradients_contiguous(optimizer)
    return optimizer
