"""Down when a metric stands still."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from recgrad.limits import Inside, Rate, Size
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule


@SCHEDULES.register("reduce_on_plateau_learning_rate")
@dataclass(kw_only=True, eq=False)
class ReduceOnPlateau(Schedule):
    """Multiplies the rate by factor when a metric has not improved for more than `patience` evaluations.

    The one schedule with a state: `observe` takes the metric's value after each evaluation,
    and the state is part of the checkpoint. Every process must observe the same value. A value
    that is not a number counts as no improvement. The rate never falls below min_lr (a base
    rate that is below already stays as it is). The rules are those of
    torch.optim.lr_scheduler.ReduceLROnPlateau, but for a negative best value, whose relative
    threshold is taken of its size: torch lets values that are worse pass for better.

    Args:
        metric: the name of the evaluation's metric.
        mode: max when larger is better, min when smaller is.
        threshold: by how much a value must be better than the best one to count; a share of
            the best (threshold_mode rel) or an amount (abs).
        cooldown: evaluations after a reduction that do not count as bad.
    """

    metric: str = "auc"
    mode: Literal["max", "min"] = "max"
    factor: Inside = 0.1
    patience: Size = 10
    threshold: Rate = 1e-4
    threshold_mode: Literal["rel", "abs"] = "rel"
    cooldown: Size = 0
    min_lr: Rate = 0.0
    by_epoch: bool = field(default=False, init=False)
    reductions: int = field(default=0, init=False)
    best: float | None = field(default=None, init=False)
    bad: int = field(default=0, init=False)
    cooling: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Refuse a metric without a name."""
        super().__post_init__()
        if not self.metric:
            raise ValueError("metric is empty; name the metric to watch")

    def after_warmup(self, base: float, n: int) -> float:
        """base·factor^reductions, not below min_lr."""
        return max(base * self.factor**self.reductions, min(base, self.min_lr))

    def observe(self, value: float) -> bool:
        """Takes the metric's value after an evaluation; says whether the rate was reduced."""
        if self._better(value):
            self.best = value
            self.bad = 0
        else:
            self.bad += 1
        if self.cooling > 0:
            self.cooling -= 1
            self.bad = 0
        if self.bad <= self.patience:
            return False
        self.reductions += 1
        self.cooling = self.cooldown
        self.bad = 0
        return True

    def _better(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if self.best is None:
            return True
        margin = self.threshold * (abs(self.best) if self.threshold_mode == "rel" else 1)
        return value > self.best + margin if self.mode == "max" else value < self.best - margin

    def state_dict(self) -> dict[str, Any]:
        """The reductions made, the best value and the counts of evaluations."""
        return {
            "reductions": self.reductions,
            "best": self.best,
            "bad": self.bad,
            "cooling": self.cooling,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""
        self.reductions = state["reductions"]
        self.best = state["best"]
        self.bad = state["bad"]
        self.cooling = state["cooling"]
