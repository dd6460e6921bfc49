"""The frame of the optimizers written here: state, groups and the walk over them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from recgrad.optim.dense.optimizer import Params
from recgrad.optim.eager import EagerOptimizer


class ForeachOptimizer(EagerOptimizer):
    """An optimizer whose update is written once, for a list of tensors.

    With `foreach` (the default) the list holds all of a group's parameters that have
    gradients, without it one after the other; the results are the same. Parameters without
    gradients are not touched, nor are gradients changed.
    """

    def __init__(self, params: Params, defaults: dict[str, Any], *, foreach: bool = True) -> None:
        super().__init__(params, {**defaults, "foreach": foreach})

    @abstractmethod
    def init_state(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """The state of a parameter before its first update."""

    @abstractmethod
    def update(
        self, params: list[Tensor], grads: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]
    ) -> None:
        """Updates parameters and their states in place."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Makes one update; the closure, when given, is called first for the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            for p in params:
                if p.grad.is_sparse:
                    raise ValueError(f"{type(self).__name__} takes dense gradients, got a sparse one")
                if not self.state[p]:
                    self.state[p] = self.init_state(p, group)
            for part in [params] if group["foreach"] else [[p] for p in params]:
                self.update(part, [p.grad for p in part], [self.state[p] for p in part], group)
        return loss
