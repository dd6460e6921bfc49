"""Half a cosine wave."""

from __future__ import annotations

import math
from dataclasses import dataclass

from recgrad.limits import Count, Rate
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule


def half_cosine(progress: float) -> float:
    """1 at progress 0, 0 at progress 1, along half a cosine wave."""
    return 0.5 * (1 + math.cos(math.pi * progress))


@SCHEDULES.register("cosine_annealing_learning_rate")
@dataclass(kw_only=True, eq=False)
class CosineAnnealing(Schedule):
    """Falls from the base rate to min_learning_rate along half a cosine wave over T_max, and stays there.

    min + (base − min)·(1 + cos(π·n/T_max))/2, n counted from the end of the warm-up.

    Paper: Loshchilov and Hutter 2017, SGDR: stochastic gradient descent with warm restarts.
    """

    T_max: Count
    min_learning_rate: Rate = 0.0

    def after_warmup(self, base: float, n: int) -> float:
        """The wave at n, or its end."""
        if n >= self.T_max:
            return self.min_learning_rate
        return self.min_learning_rate + (base - self.min_learning_rate) * half_cosine(n / self.T_max)
