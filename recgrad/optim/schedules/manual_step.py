"""Rates by hand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from recgrad.limits import Rate
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule


@SCHEDULES.register("manual_step_learning_rate")
@dataclass(kw_only=True, eq=False)
class ManualStep(Schedule):
    """Takes given rates after given numbers of updates.

    The base rate while n ≤ s₁, then rᵢ once n > sᵢ. The comparison is strict: with
    schedule_sizes [100] the update made after 100 finished ones still has the base rate.
    Configs written for TorchEasyRec count on it.

    Args:
        schedule_sizes: s₁ < s₂ < …
        learning_rates: r₁, r₂, …, one for each size.
        warmup: rise (or fall) in a straight line from the base rate to r₁ over [0, s₁].
            Not to be mixed with warmup_size, the warm-up of all schedules, after which n counts.
    """

    schedule_sizes: Sequence[int]
    learning_rates: Sequence[Rate]
    warmup: bool = False

    def __post_init__(self) -> None:
        """Refuse lists that do not fit each other, and two warm-ups."""
        super().__post_init__()
        self.schedule_sizes, self.learning_rates = tuple(self.schedule_sizes), tuple(self.learning_rates)
        sizes, rates = self.schedule_sizes, self.learning_rates
        if not sizes and not rates:
            raise ValueError("schedule_sizes and learning_rates are empty; give at least one of each")
        if len(sizes) != len(rates):
            raise ValueError(
                f"schedule_sizes and learning_rates must be as many, got {len(sizes)} and {len(rates)}"
            )
        for i, (left, right) in enumerate(pairwise(sizes)):
            if left >= right:
                raise ValueError(f"schedule_sizes[{i + 1}] must rise, got {right} after {left}")
        if self.warmup and sizes[0] < 1:
            raise ValueError(f"schedule_sizes[0] must be at least 1 with warmup, got {sizes[0]}")
        if self.warmup and self.warmup_size:
            raise ValueError("warmup and warmup_size are both set; keep one")

    @property
    def warms_up(self) -> bool:
        """Whether either of the two warm-ups is set."""
        return self.warmup or super().warms_up

    def after_warmup(self, base: float, n: int) -> float:
        """Base while n ≤ s₁ (on the way to r₁ with `warmup`), then the last rᵢ with sᵢ < n."""
        passed = bisect_left(self.schedule_sizes, n)
        if passed:
            return self.learning_rates[passed - 1]
        if self.warmup:
            return (self.learning_rates[0] - base) * n / self.schedule_sizes[0] + base
        return base
