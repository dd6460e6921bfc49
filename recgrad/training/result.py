"""How a run ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from recgrad.training.hooks.console import describe_metrics


@dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
        model_dir: where everything was written.
        step: updates made, over all parts of the run.
        metrics: the last evaluation.
        evaluated_step: its step, or None.
        evaluations: how many were made, over all parts of the run.
        best_metric: what the best evaluation is best by: the metric of the best checkpoint, of early
            stopping, of a plateau schedule, or the first of the config; "" without an evaluation.
        best_step: the step of the best evaluation, or None.
        best_metrics: the best evaluation.
        samples_per_sec: rows trained on per second of training, evaluation left out.
        stopped: why the run ended early, or "".
        exit_code: 0, or 143/130 after SIGTERM/SIGINT.
        hint: after a signal, or where nothing was left to train, how to go on; else "".
    """

    model_dir: Path
    step: int
    metrics: Mapping[str, float]
    samples_per_sec: float
    stopped: str
    exit_code: int
    hint: str = ""
    evaluated_step: int | None = None
    evaluations: int = 0
    best_metric: str = ""
    best_step: int | None = None
    best_metrics: Mapping[str, float] = field(default_factory=dict)

    def describe(self) -> str:
        """The last lines on the terminal."""
        lines = [f"{self.step:,} steps, {self.samples_per_sec:,.0f} samples/s, model in {self.model_dir}"]
        if self.metrics:
            lines += self._describe_evaluations()
        return "\n".join(lines + ([self.hint] if self.hint else []))

    def _describe_evaluations(self) -> list[str]:
        """The last evaluation, and the best one where that is another."""
        last = describe_metrics(self.metrics)
        if self.best_step is None or self.evaluations < 2:
            return [last]
        if self.best_step == self.evaluated_step:
            return [f"{last}  (the best by {self.best_metric})"]
        best = describe_metrics(self.best_metrics)
        return [
            f"last, step {self.evaluated_step:,}: {last}",
            f"best by {self.best_metric}, step {self.best_step:,}: {best}",
        ]
