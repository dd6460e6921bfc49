"""What the loop changes besides weights: saved whole, restored whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
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


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_best(value: Any) -> bool:
    """{} or {"metric": …, "value": …, "step": …}."""
    if not isinstance(value, dict):
        return False
    kinds: dict[str, type | tuple[type, ...]] = {"metric": str, "value": (int, float), "step": int}
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
}
