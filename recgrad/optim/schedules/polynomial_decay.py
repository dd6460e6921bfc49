"""Polynomial decay, and the straight line, its first power."""

from __future__ import annotations

import math

from recgrad.optim.bounds import above, at_least
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule


@SCHEDULES.register("polynomial_decay_learning_rate")
class PolynomialDecay(Schedule):
    """Falls from the base rate to min_learning_rate as a power of what is left of decay_size.

    min + (base − min)·(1 − n/decay_size)^power, n counted from the end of the warm-up, and
    min_learning_rate afterwards.
    """

    def __init__(
        self,
        *,
        decay_size: int,
        power: float = 1.0,
        min_learning_rate: float = 0.0,
        warmup_learning_rate: float = 0.0,
        warmup_size: int = 0,
        by_epoch: bool = False,
    ) -> None:
        super().__init__(
            warmup_size=warmup_size, warmup_learning_rate=warmup_learning_rate, by_epoch=by_epoch
        )
        at_least(decay_size, 1, "decay_size")
        at_least(min_learning_rate, 0, "min_learning_rate")
        above(power, 0, "power")
        self.decay_size = decay_size
        self.power = power
        self.min_learning_rate = min_learning_rate

    def after_warmup(self, base: float, n: int) -> float:
        """min + (base − min)·(1 − n/decay_size)^power."""
        left = 1 - min(n, self.decay_size) / self.decay_size
        return self.min_learning_rate + (base - self.min_learning_rate) * math.pow(left, self.power)
