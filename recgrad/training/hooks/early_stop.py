"""Best checkpoint and early stopping: both watch one metric of the evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from recgrad.errors import RecgradError, nearest
from recgrad.training.hooks.base import Hook
from recgrad.training.trainer import Trainer


@dataclass(frozen=True)
class Watch:
    """A metric and what counts as an improvement of it."""

    metric: str
    larger_is_better: bool = True
    min_delta: float = 0.0

    def value(self, metrics: Mapping[str, float]) -> float:
        """The metric's value; an error that names the known ones when it is not there."""
        if self.metric not in metrics:
            raise RecgradError(
                f"no evaluation metric '{self.metric}'{nearest(self.metric, metrics)} "
                f"(evaluated: {', '.join(sorted(metrics))})"
            )
        return metrics[self.metric]

    def improves(self, value: float, best: float | None) -> bool:
        """Whether `value` beats `best` by more than min_delta; nan never does."""
        if math.isnan(value):
            return False
        if best is None:
            return True
        gain = value - best if self.larger_is_better else best - value
        return gain > self.min_delta


class KeepBest(Hook):
    """Remembers the step with the best value, so that its checkpoint is kept."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def after_evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        value = self.watch.value(metrics)
        best = trainer.state.best.get("checkpoint")
        if self.watch.improves(value, None if best is None else best["value"]):
            trainer.state.best["checkpoint"] = {"value": value, "step": trainer.state.step}


class EarlyStop(Hook):
    """Ends the run when `patience` evaluations in a row bring no improvement."""

    def __init__(self, watch: Watch, patience: int) -> None:
        self.watch = watch
        self.patience = patience

    def after_evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        state = trainer.state
        value = self.watch.value(metrics)
        best = state.best.get("early_stopping")
        if self.watch.improves(value, None if best is None else best["value"]):
            state.best["early_stopping"] = {"value": value, "step": state.step}
            state.stale_evaluations = 0
            return
        state.stale_evaluations += 1
        if state.stale_evaluations >= self.patience:
            reached = "never" if best is None else f"{best['value']:.6g} at step {int(best['step'])}"
            trainer.end(
                f"early stopping: {self.watch.metric} has not improved for {self.patience} evaluations "
                f"(best: {reached})"
            )
