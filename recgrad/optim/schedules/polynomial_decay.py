"""Polynomial decay, and the straight line, its first power."""

from __future__ import annotations

import math
from dataclasses import dataclass

from recgrad.limits import Count, Positive, Rate
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule


@SCHEDULES.register("polynomial_decay_learning_rate")
@dataclass(kw_only=True, eq=False)
class PolynomialDecay(Schedule):
    """Falls from the base rate to min_learning_rate as a power of what is left of decay_size.

    min + (base − min)·(1 − n/decay_size)^power, n counted from the end of the warm-up, and
    min_learning_rate afterwards.
    """

    decay_size: Count
    power: Positive = 1.0
    min_learning_rate: Rate = 0.0

    def after_warmup(self, base: float, n: int) -> float:
        """min + (base − min)·(1 − n/decay_size)^power."""
        left = 1 - min(n, self.decay_size) / self.decay_size
        return self.min_learning_rate + (base - self.min_learning_rate) * math.pow(left, self.power)
