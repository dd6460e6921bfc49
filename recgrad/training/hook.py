"""What happens around the loop: the base class of hooks, and what they are told of each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recgrad.training.trainer import Trainer


@dataclass(frozen=True)
class StepReport:
    """One finished update.

    Attributes:
        step: updates finished, this one included.
        losses: the terms of the loss by name, and their sum as "total".
        rates: the learning rate of each parameter group during the update.
        grad_norm: norm of the dense gradients before clipping, when it was computed.
        samples: rows of the update, over its micro-batches.
        data_wait_secs: time the loop waited for data.
        step_secs: time of the whole update, waiting included.
    """

    step: int
    losses: Mapping[str, float]
    rates: Mapping[str, float]
    grad_norm: float | None
    samples: int
    data_wait_secs: float
    step_secs: float


class Hook:
    """Base class; every method does nothing.

    Attributes:
        watches: evaluations decide something here, so there is to be one each epoch at least.
    """

    watches: bool = False

    def on_start(self, trainer: Trainer) -> None:
        """Before the first step of this process; what ended the run before must say so again."""

    def after_step(self, trainer: Trainer, report: StepReport) -> None:
        """After an update."""

    def while_waiting(self, trainer: Trainer) -> None:
        """Some times a second while rows of a stream are waited for; of several ranks, on all or none."""

    def after_epoch(self, trainer: Trainer) -> None:
        """After a full pass over the data; `trainer.state.epoch` counts it."""

    def during_evaluation(self, trainer: Trainer, done: int, total: int | None) -> None:
        """After each batch of an evaluation, of which there are `total`; must cost next to nothing."""

    def after_evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """After an evaluation."""

    def before_save(self, trainer: Trainer) -> None:
        """Before a checkpoint is taken: what this changes in the state is in it."""

    def after_save(self, trainer: Trainer) -> None:
        """After a checkpoint was handed to the writer."""

    def on_end(self, trainer: Trainer) -> None:
        """After the last step, also when the run was asked to stop."""

    def close(self, trainer: Trainer) -> None:
        """Release files and displays; called last, also after an error."""
