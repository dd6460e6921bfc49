"""Torch optimizers that start without torch's compiler.

Torch marks methods of its optimizers for its compiler to step around, and a marked method
imports the compiler when it is first called, which takes as long as importing torch. Nothing
here compiles an optimizer, so these classes call what is behind the marks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch.optim import Optimizer

_MARKED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


class EagerOptimizer(Optimizer):
    """The base class of the optimizers written here: torch's, without the compiler's marks."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)


def eager(kind: type[Optimizer]) -> Callable[..., Optimizer]:
    """An optimizer class of another package, without the compiler's marks."""
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in _MARKED}
    # The mark on step also turns gradients off.
    step = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), {**methods, "step": step, "__doc__": kind.__doc__})
