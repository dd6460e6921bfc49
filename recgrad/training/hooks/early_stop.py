"""The best evaluation, the best checkpoint and early stopping: each goes by one metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recgrad.errors import RecgradError, nearest
from recgrad.training.hook import Hook
from recgrad.training.trainer import Trainer


@dataclass(frozen=True)
class Watch:
    """A metric and what counts as an improvement of it; `where` the config names it, for errors."""

    metric: str
    larger_is_better: bool = True
    min_delta: float = 0.0
    where: str = "metric"

    def value(self, metrics: Mapping[str, float]) -> float:
        """The metric's value; an error that names the known ones when it is not there."""
        if self.metric not in metrics:
            raise RecgradError(
                f"{self.where}: no evaluation metric '{self.metric}'{nearest(self.metric, metrics)} "
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


def judge(watch: Watch, values: Sequence[float]) -> tuple[int | None, int]:
    """The position of the best of some evaluations, and how many have passed since the last improvement."""
    best = None
    for number, value in enumerate(values):
        if watch.improves(value, None if best is None else values[best]):
            best = number
    return best, len(values) - (0 if best is None else best + 1)


class BestEvaluation(Hook):
    """Remembers the metrics of the best evaluation, for the log and the result.

    Args:
        candidates: the first whose metric the evaluation has decides.
    """

    def __init__(self, candidates: Sequence[Watch]) -> None:
        self.candidates = tuple(candidates)

    def after_evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        watch = next((watch for watch in self.candidates if watch.metric in metrics), None)
        if watch is None:
            return
        best = trainer.state.best_evaluation
        known = best["metrics"][watch.metric] if best.get("metric") == watch.metric else None
        if watch.improves(metrics[watch.metric], known):
            trainer.state.best_evaluation = {
                "metric": watch.metric,
                "step": trainer.state.step,
                "metrics": dict(metrics),
            }


class KeepBest(Hook):
    """Remembers the step with the best value, so that its checkpoint is kept."""

    watches = True

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def after_evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        value = self.watch.value(metrics)
        best = trainer.state.best
        # The value of another metric says nothing: a config may have changed since.
        comparable = best.get("metric") == self.watch.metric
        if self.watch.improves(value, best["value"] if comparable else None):
            trainer.state.best = {"metric": self.watch.metric, "value": value, "step": trainer.state.step}


class EarlyStop(Hook):
    """Ends the run when `patience` evaluations in a row bring no improvement.

    A run that resumes is judged at its start by all evaluations it has had, so that one that
    was stopped continues if, by settings that have changed, it should not have been.
    """

    watches = True

    def __init__(self, watch: Watch, patience: int) -> None:
        self.watch = watch
        self.patience = patience

    def on_start(self, trainer: Trainer) -> None:
        self._end_if_stale(trainer)

    def after_evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        value = self.watch.value(metrics)
        seen = self._seen(trainer)
        trainer.state.watched = {self.watch.metric: [*seen, (trainer.state.step, value)]}
        self._end_if_stale(trainer)

    def _seen(self, trainer: Trainer) -> list[tuple[int, float]]:
        """Steps and values of the metric so far; none of those of another metric."""
        return trainer.state.watched.get(self.watch.metric, [])

    def _end_if_stale(self, trainer: Trainer) -> None:
        seen = self._seen(trainer)
        best, stale = judge(self.watch, [value for _, value in seen])
        if stale >= self.patience:
            reached = "never" if best is None else f"{seen[best][1]:.6g} at step {seen[best][0]}"
            more = f" by more than {self.watch.min_delta:g}" if self.watch.min_delta else ""
            times = "1 evaluation" if stale == 1 else f"{stale} evaluations"
            trainer.end(
                f"early stopping: {self.watch.metric} has not improved{more} for {times} (best: {reached})"
            )
