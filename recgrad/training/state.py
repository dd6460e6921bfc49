"""What the loop changes besides weights: saved whole, restored whole."""

from __future__ import annotations

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
    evaluation_due: bool = False
    stopped: str = ""

    def to_tree(self) -> dict[str, Any]:
        """As plain values for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> TrainState:
        """Back from a checkpoint."""
        return cls(**tree)
