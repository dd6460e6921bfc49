"""Decay in equal steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from recgrad.limits import Count, Range, Rate
from recgrad.optim.schedules.schedule import SCHEDULES, Schedule

STEP_SIZES = (2000, 4000)
STEP_GAMMAS = (0.1, 0.5)
"""What step decay usually has."""
# A rate below this share of its start no longer teaches anything.
_FALLEN = 1e-4


@SCHEDULES.register("step_decay_learning_rate")
@dataclass(kw_only=True, eq=False)
class StepDecay(Schedule):
    """Multiplies the rate by gamma every step_size.

    max(base·gamma^⌊n/step_size⌋, min_learning_rate), n counted from the end of the warm-up.
    """

    step_size: Count
    gamma: Annotated[float, Range("(0, 1]")] = 0.1
    min_learning_rate: Rate = 0.0

    def unusual(self, length: int | None) -> tuple[str, str] | None:
        """A rate that hardly falls, falls at once, or falls to nothing."""
        usual = f"usual are a step_size of {STEP_SIZES[0]}–{STEP_SIZES[1]} steps and a gamma of "
        usual += f"{STEP_GAMMAS[0]:g}–{STEP_GAMMAS[1]:g}"
        if length and self.step_size + self.warmup_size >= length:
            unit = "epochs" if self.by_epoch else "steps"
            what = f"{self.step_size} is not less than the {length} {unit} of training"
            return "step_size", f"{what}, so the rate never falls; {usual}"
        if self.gamma < STEP_GAMMAS[0] / 2:
            return "gamma", f"{self.gamma:g} ends training at the first step down; {usual}"
        falls = (length - self.warmup_size) // self.step_size if length else 0
        if self.gamma < 1 and falls and self.gamma**falls < _FALLEN and not self.min_learning_rate:
            left = f"the rate falls {falls} times to {self.gamma**falls:.1g} of its start"
            return "", f"{left}; {usual}, or set min_learning_rate"
        return None

    def after_warmup(self, base: float, n: int) -> float:
        """max(base·gamma^⌊n/step_size⌋, min_learning_rate)."""
        return max(base * self.gamma ** (n // self.step_size), self.min_learning_rate)
