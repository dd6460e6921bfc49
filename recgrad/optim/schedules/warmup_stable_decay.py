"""Warm-up, stay, decay."""

from __future__ import annotations

import math

from recgrad.optim.bounds import at_least, one_of
from recgrad.optim.schedules.cosine_annealing import half_cosine
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule


@SCHEDULES.register("warmup_stable_decay_learning_rate")
class WarmupStableDecay(Schedule):
    """Warms up, stays at the base rate for stable_size, then falls to min_learning_rate over decay_size.

    With p the share of the decay that is done: linear base + (min − base)·p; cos along half a
    cosine wave; sqrt min + (base − min)·(1 − √p); exponential base·(min/base)^p, which needs a
    min_learning_rate above 0.

    Paper: Hu et al. 2024, MiniCPM; 1 − √p: Hägele et al. 2024.
    """

    def __init__(
        self,
        *,
        stable_size: int,
        decay_size: int,
        decay_shape: str = "linear",
        min_learning_rate: float = 0.0,
        warmup_size: int = 0,
        warmup_learning_rate: float = 0.0,
        by_epoch: bool = False,
    ) -> None:
        super().__init__(
            warmup_size=warmup_size, warmup_learning_rate=warmup_learning_rate, by_epoch=by_epoch
        )
        at_least(stable_size, 0, "stable_size")
        at_least(decay_size, 1, "decay_size")
        at_least(min_learning_rate, 0, "min_learning_rate")
        one_of(decay_shape, ("linear", "cos", "sqrt", "exponential"), "decay_shape")
        if decay_shape == "exponential" and min_learning_rate == 0:
            raise ValueError("decay_shape 'exponential' needs a min_learning_rate greater than 0, got 0")
        self.stable_size = stable_size
        self.decay_size = decay_size
        self.decay_shape = decay_shape
        self.min_learning_rate = min_learning_rate

    def after_warmup(self, base: float, n: int) -> float:
        """The base rate, then the decay, then the minimum."""
        if n <= self.stable_size:
            return base
        if n >= self.stable_size + self.decay_size:
            return self.min_learning_rate
        p = (n - self.stable_size) / self.decay_size
        if self.decay_shape == "exponential":
            return base * math.pow(self.min_learning_rate / base, p)
        left = {"linear": 1 - p, "cos": half_cosine(p), "sqrt": 1 - math.sqrt(p)}[self.decay_shape]
        return self.min_learning_rate + (base - self.min_learning_rate) * left
