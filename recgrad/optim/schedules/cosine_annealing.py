"""Half a cosine wave."""

from __future__ import annotations

import math

from recgrad.optim.bounds import at_least
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule


def half_cosine(progress: float) -> float:
    """1 at progress 0, 0 at progress 1, along half a cosine wave."""
    return 0.5 * (1 + math.cos(math.pi * progress))


@SCHEDULES.register("cosine_annealing_learning_rate")
class CosineAnnealing(Schedule):
    """Falls from the base rate to min_learning_rate along half a cosine wave over T_max, and stays there.

    min + (base − min)·(1 + cos(π·n/T_max))/2, n counted from the end of the warm-up.

    Paper: Loshchilov and Hutter 2017, SGDR: stochastic gradient descent with warm restarts.
    """

    def __init__(
        self,
        *,
        T_max: int,
        min_learning_rate: float = 0.0,
        warmup_learning_rate: float = 0.0,
        warmup_size: int = 0,
        by_epoch: bool = False,
    ) -> None:
        super().__init__(
            warmup_size=warmup_size, warmup_learning_rate=warmup_learning_rate, by_epoch=by_epoch
        )
        at_least(T_max, 1, "T_max")
        at_least(min_learning_rate, 0, "min_learning_rate")
        self.T_max = T_max
        self.min_learning_rate = min_learning_rate

    def after_warmup(self, base: float, n: int) -> float:
        """The wave at n, or its end."""
        if n >= self.T_max:
            return self.min_learning_rate
        return self.min_learning_rate + (base - self.min_learning_rate) * half_cosine(n / self.T_max)
