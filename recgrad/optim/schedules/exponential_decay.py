"""Exponential decay."""

from __future__ import annotations

import math

from recgrad.optim.bounds import above, at_least
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule


@SCHEDULES.register("exponential_decay_learning_rate")
class ExponentialDecay(Schedule):
    """Falls by decay_factor every decay_size, down to min_learning_rate.

    max(base·decay_factor^p, min_learning_rate), p = n/decay_size, rounded down when
    `staircase`; n counts from the end of the warm-up.
    """

    def __init__(
        self,
        *,
        decay_size: int,
        decay_factor: float = 0.95,
        staircase: bool = True,
        warmup_learning_rate: float = 0.0,
        warmup_size: int = 0,
        min_learning_rate: float = 0.0,
        by_epoch: bool = False,
    ) -> None:
        super().__init__(
            warmup_size=warmup_size, warmup_learning_rate=warmup_learning_rate, by_epoch=by_epoch
        )
        at_least(decay_size, 1, "decay_size")
        at_least(min_learning_rate, 0, "min_learning_rate")
        above(decay_factor, 0, "decay_factor")
        self.decay_size = decay_size
        self.decay_factor = decay_factor
        self.staircase = staircase
        self.min_learning_rate = min_learning_rate

    def after_warmup(self, base: float, n: int) -> float:
        """max(base·decay_factor^p, min_learning_rate)."""
        p = n // self.decay_size if self.staircase else n / self.decay_size
        try:
            scale = math.pow(self.decay_factor, p)
        except OverflowError:  # a growing factor, far past any use
            scale = math.inf
        return max(base * scale, self.min_learning_rate)
