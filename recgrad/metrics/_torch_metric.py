"""The metrics as torchmetrics' own kind, for loops that are built on it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torchmetrics
from torch import Tensor

from recgrad.metrics.base import Metric, Value


class TorchMetric(torchmetrics.Metric, Metric):
    """Keeps the state of a metric, and gathers it, the way of torchmetrics."""

    full_state_update = False

    def __init__(self, **kwargs: Any) -> None:
        # A rank without new rows would return its cached value and leave the others waiting.
        torchmetrics.Metric.__init__(self, **({"compute_with_cache": False} | kwargs))
        self._begin()

    @property
    def update_called(self) -> bool:
        """True: a metric without rows says itself that it is undefined."""
        return True

    def compute(self) -> Value:
        """The value of all rows so far."""
        return self.measure()

    def declare(self, name: str, default: Tensor | list[Any], reduce: str | None) -> None:
        """Declare a state, and what is done with it over ranks."""
        self.add_state(name, default, dist_reduce_fx=reduce, persistent=True)

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
        # A rank without rows joins the gather with an empty tensor of the right type.
        for name in self._row_dtypes:
            setattr(self, name, [self._joined(name)])
        super()._sync_dist(*args, **kwargs)

    def _copy_state_dict(self) -> dict[str, Tensor | list[Any]]:
        # Kept rows are never written to, so a copy of the list is a copy of the state.
        state: dict[str, Tensor | list[Any]] = {}
        for name in self._defaults:
            value = getattr(self, name)
            state[name] = list(value) if isinstance(value, list) else value.detach().clone()
        return state

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in self._defaults:
            value = state_dict.get(prefix + name)
            if isinstance(value, Tensor):
                state_dict[prefix + name] = value.to(self.device, copy=True)
            elif isinstance(value, list):
                state_dict[prefix + name] = [item.to(self.device, copy=True) for item in value]
        super()._load_from_state_dict(state_dict, prefix, *args)


@cache
def torch_metric(kind: type[Metric]) -> type[TorchMetric]:
    """A metric's class as a subclass of `torchmetrics.Metric`, with the same arguments and values."""
    # The package gives it out under its name, where pickle looks for it.
    named = {"__doc__": kind.__doc__, "__module__": "recgrad.metrics"}
    return type(kind.__name__, (kind, TorchMetric), named)
