"""The learning rates that are usual for an optimizer; what it says of itself, and the check compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

C = TypeVar("C", bound=Callable[..., Any])


@dataclass(frozen=True)
class UsualRates:
    """From `low` to `high`; `with_momentum` has those that go with a momentum above 0, where they differ."""

    low: float
    high: float
    with_momentum: tuple[float, float] | None = None

    def of(self, settings: Mapping[str, Any]) -> tuple[float, float]:
        """Those that go with an optimizer's settings."""
        if self.with_momentum is not None and settings.get("momentum"):
            return self.with_momentum
        return self.low, self.high

    def __call__(self, component: C) -> C:
        """As a decorator: what a class or function says of itself."""
        component.usual_rates = self  # type: ignore[attr-defined]
        return component


ADAM = UsualRates(1e-4, 1e-3)
SPARSE_ADAM = UsualRates(1e-4, 1e-2)
"""A row of a table is updated in few of the steps, and takes larger ones."""
ADAGRAD = UsualRates(0.01, 0.1)
LION = UsualRates(1e-4, 3e-4)
SGD = UsualRates(0.1, 1.0, with_momentum=(0.01, 0.1))
