"""Decay in equal steps."""

from __future__ import annotations

from recgrad.optim.bounds import at_least
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule


@SCHEDULES.register("step_decay_learning_rate")
class StepDecay(Schedule):
    """Multiplies the rate by gamma every step_size.

    max(base·gamma^⌊n/step_size⌋, min_learning_rate), n counted from the end of the warm-up.
    """

    def __init__(
        self,
        *,
        step_size: int,
        gamma: float = 0.1,
        min_learning_rate: float = 0.0,
        warmup_learning_rate: float = 0.0,
        warmup_size: int = 0,
        by_epoch: bool = False,
    ) -> None:
        super().__init__(
            warmup_size=warmup_size, warmup_learning_rate=warmup_learning_rate, by_epoch=by_epoch
        )
        at_least(step_size, 1, "step_size")
        at_least(min_learning_rate, 0, "min_learning_rate")
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must be in (0, 1], got {gamma}")
        self.step_size = step_size
        self.gamma = gamma
        self.min_learning_rate = min_learning_rate

    def after_warmup(self, base: float, n: int) -> float:
        """max(base·gamma^⌊n/step_size⌋, min_learning_rate)."""
        return max(base * self.gamma ** (n // self.step_size), self.min_learning_rate)
