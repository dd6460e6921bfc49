"""The constant rate."""

from __future__ import annotations

from recgrad.optim.schedules.schedule import SCHEDULES, Schedule


@SCHEDULES.register("constant_learning_rate")
class Constant(Schedule):
    """Stays at the base rate."""

    @property
    def moves(self) -> bool:
        """Only in a warm-up."""
        return self.warms_up

    def after_warmup(self, base: float, n: int) -> float:
        """Base."""
        return base
