"""One cycle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from recgrad.limits import Count, Fraction, Positive, Range, Share
from recgrad.optim.schedules.cosine_annealing import half_cosine
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule


@SCHEDULES.register("one_cycle_learning_rate")
@dataclass(kw_only=True, eq=False)
class OneCycle(Schedule):
    """Rises from max/div_factor to max over the first pct_start of total_size, then falls to nearly nothing.

    The end is max/div_factor/final_div_factor, reached at n = total_size − 1 and kept. With
    three_phase the rate first falls as it rose and then goes on to the end. The momentum (or
    beta1) moves the other way, between max_momentum and base_momentum, unless cycle_momentum
    is off; a momentum of 0 stays 0. The turning points are torch's.

    Paper: Smith and Topin 2018, Super-convergence.

    Args:
        total_size: the length of the cycle.
        max_lr: the rate at the top; the optimizer's lr when left out.
        anneal: cos or linear, the way from one turning point to the next.
    """

    total_size: Count
    max_lr: Positive | None = None
    pct_start: Fraction = 0.3
    anneal: Literal["cos", "linear"] = "cos"
    div_factor: Annotated[float, Range("[1, ∞)")] = 25.0
    final_div_factor: Annotated[float, Range("[1, ∞)")] = 1e4
    three_phase: bool = False
    cycle_momentum: bool = True
    base_momentum: Share = 0.85
    max_momentum: Share = 0.95

    def __post_init__(self) -> None:
        """Refuse a rise that leaves no room for the fall, and momenta the wrong way round."""
        super().__post_init__()
        if self.three_phase and self.pct_start > 0.5:
            raise ValueError(f"pct_start must be in [0, 0.5] with three_phase, got {self.pct_start}")
        if self.base_momentum > self.max_momentum:
            raise ValueError(
                f"base_momentum must be at most max_momentum {self.max_momentum}, got {self.base_momentum}"
            )

    @property
    def warms_up(self) -> bool:
        """True: the cycle begins with a rise."""
        return True

    def start(self, base: float) -> float:
        """max/div_factor."""
        return (self.max_lr or base) / self.div_factor

    def after_warmup(self, base: float, n: int) -> float:
        """The rate on the way between the two turning points around n."""
        top = self.max_lr or base
        first = top / self.div_factor
        end = first / self.final_div_factor
        return self._between((first, top, first, end) if self.three_phase else (first, top, end), n)

    def momentum(self, n: int) -> float | None:
        """The momentum at n; None when it is not cycled."""
        if not self.cycle_momentum:
            return None
        low, high = self.base_momentum, self.max_momentum
        points = (high, low, high, high) if self.three_phase else (high, low, high)
        return self._between(points, max(n - self.warmup_size, 0))

    @property
    def cycles_momentum(self) -> bool:
        """Whether the momentum is cycled."""
        return self.cycle_momentum

    def _between(self, points: tuple[float, ...], n: int) -> float:
        """The value at n on the way through the points, which lie at the phases' ends."""
        start = 0.0
        for value, goal, end in zip(points, points[1:], self._ends()):
            if n <= end:
                progress = (n - start) / (end - start) if end > start else 1.0
                left = half_cosine(progress) if self.anneal == "cos" else 1 - progress
                return goal + (value - goal) * left
            start = end
        return points[-1]

    def _ends(self) -> tuple[float, ...]:
        rise = self.pct_start * self.total_size - 1
        last = float(self.total_size - 1)
        return (rise, 2 * rise, last) if self.three_phase else (rise, last)
