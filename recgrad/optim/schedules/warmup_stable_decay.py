"""Warm-up, stay, decay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from recgrad.limits import Count, Rate, Size
from recgrad.optim.schedules.cosine_annealing import half_cosine
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule


@SCHEDULES.register("warmup_stable_decay_learning_rate")
@dataclass(kw_only=True, eq=False)
class WarmupStableDecay(Schedule):
    """Warms up, stays at the base rate for stable_size, then falls to min_learning_rate over decay_size.

    With p the share of the decay that is done: linear base + (min − base)·p; cos along half a
    cosine wave; sqrt min + (base − min)·(1 − √p); exponential base·(min/base)^p, which needs a
    min_learning_rate above 0.

    Paper: Hu et al. 2024, MiniCPM; 1 − √p: Hägele et al. 2024.
    """

    stable_size: Size
    decay_size: Count
    decay_shape: Literal["linear", "cos", "sqrt", "exponential"] = "linear"
    min_learning_rate: Rate = 0.0

    def __post_init__(self) -> None:
        """An exponential never arrives at 0."""
        super().__post_init__()
        if self.decay_shape == "exponential" and self.min_learning_rate == 0:
            raise ValueError("decay_shape 'exponential' needs a min_learning_rate above 0, got 0")

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
