"""Decay in equal steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from recgrad.limits import Count, Range, Rate
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule


@SCHEDULES.register("step_decay_learning_rate")
@dataclass(kw_only=True, eq=False)
class StepDecay(Schedule):
    """Multiplies the rate by gamma every step_size.

    max(base·gamma^⌊n/step_size⌋, min_learning_rate), n counted from the end of the warm-up.
    """

    step_size: Count
    gamma: Annotated[float, Range("(0, 1]")] = 0.1
    min_learning_rate: Rate = 0.0

    def after_warmup(self, base: float, n: int) -> float:
        """max(base·gamma^⌊n/step_size⌋, min_learning_rate)."""
        return max(base * self.gamma ** (n // self.step_size), self.min_learning_rate)
