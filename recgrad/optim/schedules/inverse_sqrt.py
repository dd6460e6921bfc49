"""The inverse square root."""

from __future__ import annotations

import math
from dataclasses import dataclass

from recgrad.limits import Count, Rate
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule


@SCHEDULES.register("inverse_sqrt_learning_rate")
@dataclass(kw_only=True, eq=False)
class InverseSqrt(Schedule):
    """Rises in a straight line to the base rate over the warm-up, then falls as 1/√n.

    For update k = n+1: w + (base − w)·k/warmup_size up to k = warmup_size, then
    max(base·√(warmup_size/k), min_learning_rate). As in the paper the
    warm-up counts the update being made, so update warmup_size has the base rate and
    warmup_size 1 is no warm-up.

    Paper: Vaswani et al. 2017, Attention is all you need.
    """

    warmup_size: Count = 1
    min_learning_rate: Rate = 0.0

    def rate(self, base: float, n: int) -> float:
        """The warm-up or the fall at update n+1."""
        if base == 0:
            return 0.0
        if n + 1 < self.warmup_size:
            return self._warm(base, n + 1)
        return self.after_warmup(base, n + 1 - self.warmup_size)

    def after_warmup(self, base: float, n: int) -> float:
        """max(base·√(warmup_size/(warmup_size + n)), min_learning_rate)."""
        return max(base * math.sqrt(self.warmup_size / (self.warmup_size + n)), self.min_learning_rate)
