"""Exponential decay."""

from __future__ import annotations

import math
from dataclasses import dataclass

from recgrad.limits import Count, Positive, Rate
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule


@SCHEDULES.register("exponential_decay_learning_rate")
@dataclass(kw_only=True, eq=False)
class ExponentialDecay(Schedule):
    """Falls by decay_factor every decay_size, down to min_learning_rate.

    max(base·decay_factor^p, min_learning_rate), p = n/decay_size, rounded down when
    `staircase`; n counts from the end of the warm-up.
    """

    decay_size: Count
    decay_factor: Positive = 0.95
    staircase: bool = True
    min_learning_rate: Rate = 0.0

    def after_warmup(self, base: float, n: int) -> float:
        """max(base·decay_factor^p, min_learning_rate)."""
        p = n // self.decay_size if self.staircase else n / self.decay_size
        try:
            scale = math.pow(self.decay_factor, p)
        except OverflowError:  # a growing factor, far past any use
            scale = math.inf
        return max(base * scale, self.min_learning_rate)
