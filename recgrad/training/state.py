"""Where a run stands and how it ended.

`TrainState` is what the loop changes besides weights: saved whole, restored whole. `TrainResult` is what
`recgrad.train` gives back, and `describe_metrics` how both are told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class TrainState:
    """Progress of a run. Nothing here depends on the clock, so a resumed run has the same bytes.

    Attributes:
        step: finished updates.
        epoch: finished passes over the data.
        samples: rows trained on.
        position: where the last consumed batch ended, as JSON; None at the start of an epoch.
        skipped: updates that were left out because of a loss or gradient that is not finite.
        best: of the best checkpoint so far, the metric it is best by, the value and the step.
        watched: the metric of early stopping and its (step, value) at every evaluation, so that
            changed settings judge the evaluations before them as well.
        evaluated: the last evaluation: how many there were with it, its step, the epoch that it was in
            (1 is the first) and its metrics.
        best_evaluation: the best so far: the metric that decides, the step and all its metrics.
        evaluation_due: the evaluation of this step was left because of a signal; the continued run
            makes it before its first step.
        stopped: why the run ended before its length, or "".
        deltas: of the last delta that was written: stream, number, id and step; {} without deltas.
        event_time: the latest that enough ranks have reached, in seconds since 1970; -1 where rows have none.
        event_time_saved: that of the last checkpoint.
    """

    step: int = 0
    epoch: int = 0
    samples: int = 0
    position: str | None = None
    skipped: int = 0
    best: dict[str, Any] = field(default_factory=dict)
    watched: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    evaluated: dict[str, Any] = field(default_factory=dict)
    best_evaluation: dict[str, Any] = field(default_factory=dict)
    evaluation_due: bool = False
    stopped: str = ""
    deltas: dict[str, Any] = field(default_factory=dict)
    event_time: float = -1.0
    event_time_saved: float = -1.0

    @property
    def current_epoch(self) -> int:
        """The epoch that the last step was in, from 1; 0 before the first."""
        return self.epoch + (self.position is not None)

    def to_tree(self) -> dict[str, Any]:
        """As plain values for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_tree(cls, tree: dict[str, Any], *, step: int) -> TrainState:
        """Back from the checkpoint of a step; raises a ValueError for values that no run has written."""
        state = cls(**tree)
        for name, holds in _HOLDS.items():
            if not holds(getattr(state, name)):
                raise ValueError(f"state.{name} is malformed")
        if state.step != step:
            raise ValueError(f"state.step is {state.step}")
        return state


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
        hint: after a signal, or where nothing was left to train, how to resume; else "".
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


def describe_metrics(metrics: Mapping[str, float]) -> str:
    """Metrics sorted by name."""
    return "  ".join(f"{name} {metrics[name]:.6f}" for name in sorted(metrics)) or "no metrics configured"


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_best(value: Any) -> bool:
    """{} or {"metric": …, "value": …, "step": …}."""
    if not isinstance(value, dict):
        return False
    kinds: dict[str, type | tuple[type, ...]] = {"metric": str, "value": (int, float), "step": int}
    return not value or all(isinstance(value.get(name), kind) for name, kind in kinds.items())


def _is_deltas(value: Any) -> bool:
    """{} or what `recgrad.training.hooks.deltas` notes."""
    if not isinstance(value, dict):
        return False
    kinds = {"stream": str, "number": int, "id": str, "step": int}
    return not value or all(isinstance(value.get(name), kind) for name, kind in kinds.items())


def _is_watched(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(metric, str) and isinstance(seen, list) and all(map(_is_evaluation, seen))
        for metric, seen in value.items()
    )


def _is_evaluation(pair: Any) -> bool:
    return (
        isinstance(pair, (list, tuple))
        and len(pair) == 2
        and _is_count(pair[0])
        and isinstance(pair[1], (int, float))
    )


_HOLDS: dict[str, Callable[[Any], bool]] = {
    "step": _is_count,
    "epoch": _is_count,
    "samples": _is_count,
    "position": lambda value: value is None or isinstance(value, str),
    "skipped": _is_count,
    "best": _is_best,
    "watched": _is_watched,
    "evaluation_due": lambda value: isinstance(value, bool),
    "stopped": lambda value: isinstance(value, str),
    "deltas": _is_deltas,
    "event_time": lambda value: isinstance(value, float),
    "event_time_saved": lambda value: isinstance(value, float),
}
