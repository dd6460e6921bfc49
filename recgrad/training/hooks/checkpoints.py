"""Evaluate and save: by steps, epochs or event times, each epoch where something watches, at the end."""

from __future__ import annotations

from collections.abc import Sequence

from recgrad.training.hook import Hook, StepReport
from recgrad.training.state import TrainState
from recgrad.training.trainer import Trainer


class SaveCheckpoints(Hook):
    """Evaluates, then saves, so that a checkpoint holds the verdict on its own weights.

    The order matters for exact resume: schedules and early stopping that listen to
    evaluations are saved after they have heard. Where a signal cut the evaluation short, the
    checkpoint says so, and the continued run begins with it.

    Where something watches the evaluations, an epoch without one gets one at its end, which is
    saved if it is the best. All this goes by the state, not by what this process has seen, so that a
    run that is resumed after a kill evaluates at the same steps.

    Args:
        every_steps, every_epochs: after so many; 0 never.
        every_event_secs: when event times pass a multiple of so many seconds since 1970; 0 never.
        event_times: when event times pass one of these.
    """

    def __init__(
        self,
        *,
        every_steps: int = 0,
        every_epochs: int = 0,
        every_event_secs: int = 0,
        event_times: Sequence[int] = (),
    ) -> None:
        self.every_event_secs = every_event_secs
        self.event_times = sorted(event_times)
        self.every_steps = every_steps
        self.every_epochs = every_epochs
        self._saved_step = -1

    def on_start(self, trainer: Trainer) -> None:
        self._saved_step = trainer.state.step if trainer.state.step else -1
        if trainer.state.evaluation_due:
            self._evaluate_and_save(trainer)

    def after_step(self, trainer: Trainer, report: StepReport) -> None:
        by_steps = self.every_steps and report.step % self.every_steps == 0
        if self._passed_time(trainer.state) or by_steps:
            self._evaluate_and_save(trainer)

    def after_epoch(self, trainer: Trainer) -> None:
        if self.every_epochs and trainer.state.epoch % self.every_epochs == 0:
            self._evaluate_and_save(trainer)
        elif trainer.watched and trainer.state.evaluated.get("epoch") != trainer.state.epoch:
            trainer.evaluate()
            if trainer.state.best.get("step") == trainer.state.step:
                self._save(trainer)

    def on_end(self, trainer: Trainer) -> None:
        saved = self._saved_step == trainer.state.step
        if trainer.stop.signal is not None and not trainer.length.reached(trainer.state):
            # Asked to stop: whoever sent the signal waits, and the evaluation can be made later.
            if not saved:
                trainer.save()
        elif not saved or trainer.owes_evaluation:
            self._evaluate_and_save(trainer)

    def _passed_time(self, state: TrainState) -> bool:
        """Whether a time to save at was passed since the last checkpoint; the first time is only noted."""
        now, before = state.event_time, state.event_time_saved
        if before < 0:
            state.event_time_saved = now
            return False
        every = self.every_event_secs
        border = bool(every) and now // every > before // every
        return border or any(before < time <= now for time in self.event_times)

    def _evaluate_and_save(self, trainer: Trainer) -> None:
        owes = trainer.owes_evaluation
        if owes:
            trainer.evaluate()
        if owes or self._saved_step != trainer.state.step:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        trainer.save()
        self._saved_step = trainer.state.step
