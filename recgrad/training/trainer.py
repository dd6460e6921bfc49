"""The training loop."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recgrad.data.batch import Batch
from recgrad.data.loader import Loader
from recgrad.errors import DataError, RecgradError
from recgrad.models.batch_ids import PreparedBatch
from recgrad.optim.updater import StepResult, Updater
from recgrad.training.feed import Feed, StreamProgress
from recgrad.training.hook import Hook, StepReport
from recgrad.training.processes import Processes
from recgrad.training.signals import InterruptedBySignal, StopRequest
from recgrad.training.state import TrainState
from recgrad.training.synchronize import rested_norms
from recgrad.training.task import Task

REMEMBERED_NORMS = 5
MOST_SKIPPED = 100
CLIP = "clip gradients (train_config.grad_clipping)"
SKIP = "skip such batches (train_config.on_nan: SKIP)"
LOWER = 0.1
"""What a learning rate is to be multiplied by that was too high."""
NAMED_RATES = 4


class NumericalError(RecgradError):
    """A loss that is not a finite number."""


@dataclass(frozen=True)
class RunLength:
    """How long to train: a number of updates or of passes over the data; one is None."""

    num_steps: int | None = None
    num_epochs: int | None = None

    def reached(self, state: TrainState) -> bool:
        """Whether the run is complete."""
        if self.num_steps is not None:
            return state.step >= self.num_steps
        return self.num_epochs is not None and state.epoch >= self.num_epochs


class Trainer:
    """Feeds batches to the task and updates its weights; hooks do the rest.

    Everything it changes is in the task, the updater and `state`, all of which a checkpoint
    holds, so a restored trainer goes on as if it had never stopped.

    With several ranks each has its share of the data, and an update is that of all their rows.
    What is reported and counted is then of all ranks.

    Args:
        task: the model with its losses and metrics.
        loader: of this rank's data.
        updater: of the weights.
        length: how long to train.
        hooks: called in this order.
        state: to resume from.
        stop: signals.
        skip_non_finite: leave out batches without a finite loss instead of ending the run.
        processes: all ranks.
        uneven: ranks may run out of batches at different times, so they ask each other.
        evaluate: gives the metrics.
        save: hands out a checkpoint.
        quorum: the share of ranks whose event times count as the run's.
    """

    def __init__(
        self,
        *,
        task: Task,
        loader: Loader,
        updater: Updater,
        length: RunLength,
        hooks: Sequence[Hook] = (),
        state: TrainState | None = None,
        stop: StopRequest | None = None,
        skip_non_finite: bool = False,
        processes: Processes | None = None,
        uneven: bool = False,
        evaluate: Callable[[Trainer], Mapping[str, float]] | None = None,
        save: Callable[[Trainer], None] | None = None,
        quorum: float = 0.5,
    ) -> None:
        self.task = task
        self.loader = loader
        self.updater = updater
        self.length = length
        self.hooks = tuple(hooks)
        self.state = state or TrainState()
        self.stop = stop or StopRequest()
        self.skip_non_finite = skip_non_finite
        self.processes = processes or Processes()
        self._uneven = uneven or loader.num_batches is None
        loader.asked_to_stop = self._asked_to_stop
        self._evaluate = evaluate
        self._save = save
        self.quorum = quorum
        self.stream = StreamProgress()  # how far the ranks are, where rows have times
        self.elapsed_secs = 0.0  # in steps of this process, evaluation and saving left out
        self.samples_here = 0  # rows trained on since this start
        self._recent_norms: deque[tuple[int, float]] = deque(maxlen=REMEMBERED_NORMS)
        self._pending = _Pending()
        self._skipped_in_a_row = 0

    def run(self) -> TrainState:
        """Train until the length is reached, a hook ends the run, or a signal asks to stop."""
        self.state.stopped = ""  # what ended a run before may have changed: hooks judge again
        try:
            self._call("on_start")
            self._pending = _Pending()
            while not self.finished:
                self._run_epoch()
            self._call("on_end")
        finally:
            for hook in self.hooks:
                hook.close(self)
        return self.state

    @property
    def finished(self) -> bool:
        """Whether no further step is to be made."""
        return bool(self.state.stopped) or self.stop.signal is not None or self.length.reached(self.state)

    @property
    def watched(self) -> bool:
        """Whether a hook or a schedule acts on evaluations."""
        return self.updater.watches or any(hook.watches for hook in self.hooks)

    @property
    def owes_evaluation(self) -> bool:
        """Whether the weights as they are have not been evaluated, and could be."""
        return self._evaluate is not None and self.state.evaluated.get("step") != self.state.step

    def evaluate(self) -> Mapping[str, float]:
        """Evaluate with averaged weights where there are some; schedules and hooks see the result.

        A signal ends it at once, without a result; the state then says that it is due.
        """
        self.state.evaluation_due = self._evaluate is not None
        if self._evaluate is None:
            return {}
        self.processes.doing(f"the evaluation of step {self.state.step}", tell=True)
        try:
            with self._pending.excluded():
                self.task.model.settle()
                metrics = self._evaluate(self)
        except InterruptedBySignal:
            return {}
        state = self.state
        state.evaluation_due = False
        state.evaluated = {
            "number": state.evaluated.get("number", 0) + 1,
            "step": state.step,
            "epoch": state.current_epoch,
            "metrics": dict(metrics),
        }
        self.updater.observe(metrics)
        self._call("after_evaluation", metrics)
        return metrics

    def save(self) -> None:
        """Hand a checkpoint of this moment to the writer."""
        if self._save is not None:
            self.processes.doing(f"saving the checkpoint of step {self.state.step}", tell=True)
            self.state.event_time_saved = self.state.event_time
            with self._pending.excluded():
                self.task.model.settle()
                self._call("before_save")
                self._save(self)
            self._call("after_save")

    def end(self, reason: str) -> None:
        """Finish after the current step; hooks call it."""
        self.state.stopped = self.state.stopped or reason

    def _run_epoch(self) -> None:
        consumed = self.state.position
        position = None if consumed is None else self.loader.read_position(consumed)
        self.updater.start_epoch(self.state.epoch)
        self.task.train()
        feed = Feed(
            self.loader,
            self.state.epoch,
            position,
            model=self.task.model,
            processes=self.processes,
            stop=self.stop,
            ask=self._uneven,
            reading=self._reading,
            waiting=self._while_waiting,
        )
        with feed:
            for batch, ids, consumed in feed:
                updated = self._train_batch(batch, ids, feed)
                self.stream = feed.progress
                # Late events do not turn the clock back.
                self.state.event_time = max(self.state.event_time, feed.progress.reached(self.quorum))
                if not self.updater.accumulating:
                    self.state.position = consumed
                if updated:
                    self._after_update()
                # A signal waits for the update to be whole: half of one cannot be saved.
                if self.finished and not self.updater.accumulating:
                    return
        if self.loader.endless:
            self._end_stream(consumed)
            return
        if consumed is None:
            # The next epoch would be the same: a run of so many steps would never end.
            raise DataError(_why_no_batch(self.loader))
        if self.updater.accumulating:
            self.state.position = consumed
            if self._note(self.updater.flush()):
                self._after_update()
        self.state.position = None
        self.state.epoch += 1
        self._call("after_epoch")

    def _end_stream(self, consumed: str | None) -> None:
        """A stream has ended for now: the position stays, and what comes later is for a run that resumes."""
        if self.updater.accumulating:
            self.state.position = consumed
            if self._note(self.updater.flush()):
                self._after_update()
        if self.stop.signal is None:
            self.end("the stream has ended")

    def _train_batch(self, batch: Batch, ids: PreparedBatch | None, feed: Feed) -> bool:
        """One micro-batch; True when it completed an update."""
        self._doing("forward")
        with rested_norms(self.processes, self.task, batch.size), self.updater.autocast():
            outputs = self.task(batch, ids)
            losses = self.task.losses(outputs, batch)
        values = {name: float(loss.detach()) for name, loss in losses.items()}
        shared = feed.share(batch.size, values, last=self._last_step)
        if shared.broken:
            self._meet_non_finite(batch, values)
            return False
        self._doing("backward")
        self.updater.backward(losses["total"] if shared.share == 1 else losses["total"] * shared.share)
        self.task.update_train_metrics(outputs, batch)
        self._pending.add(shared.rows, shared.losses)
        self._doing("update")
        return self._note(self.updater.step(), batch)

    def _doing(self, what: str) -> None:
        self.processes.doing(f"step {self.state.step + 1}: {what}")

    def _note(self, result: StepResult, batch: Batch | None = None) -> bool:
        """Take what the updater did into the state; True when it made an update."""
        if result.grad_norm is not None:
            self._recent_norms.append((self.state.step + 1, float(result.grad_norm)))
        self._pending.grad_norm = result.grad_norm
        self._pending.rates = result.rates
        if result.skipped:
            # A loss scaler looks for its scale by overflowing; without one this is trouble.
            if self.updater.grad_scaler is None and not self.skip_non_finite:
                where = "" if batch is None else f"; rows {_describe_origin(batch)}"
                raise NumericalError(
                    f"step {self.state.step + 1}: a gradient is not finite while the loss is{where}. "
                    f"What was saved before is intact; {self._remedy()}, or {SKIP}"
                )
            self._skip()
            self._pending = _Pending()  # its rows were not learned
        if result.updated:
            self._skipped_in_a_row = 0
            self.state.step += 1
            self.state.samples += self._pending.samples
        return result.updated

    def _after_update(self) -> None:
        self._call("after_step", self._report())
        self.task.train()

    def _skip(self) -> None:
        """Count an update or batch that was left out; too many in a row will not get better."""
        self.state.skipped += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= MOST_SKIPPED:
            raise NumericalError(
                f"step {self.state.step + 1}: {MOST_SKIPPED} updates in a row were not finite; the weights "
                f"are beyond repair. What was saved before is intact; {self._remedy()}"
            )

    def _meet_non_finite(self, batch: Batch, values: Mapping[str, float]) -> None:
        if self.skip_non_finite:
            self._skip()
            return
        if all(map(math.isfinite, values.values())):
            self.processes.barrier()  # another rank has the batch, and says so before it ends
        terms = ", ".join(f"{name} {value:g}" for name, value in values.items())
        norms = ", ".join(f"{norm:.4g} at step {step}" for step, norm in self._recent_norms) or "none yet"
        raise NumericalError(
            f"step {self.state.step + 1}: the loss is not finite ({terms}); rows {_describe_origin(batch)}; "
            f"gradient norms before: {norms}. What was saved before is intact; {self._remedy()}, or {SKIP}"
        )

    def _remedy(self) -> str:
        """What to try where numbers are not finite, with the rates that the config would have."""
        rates = {part.name: part.base_rates[0] for part in self.updater.parts if part.base_rates}
        named = [f"{name} {rate * LOWER:.3g} instead of {rate:.3g}" for name, rate in rates.items()]
        more = ", …" if len(named) > NAMED_RATES else ""
        try_ = f" (try {', '.join(named[:NAMED_RATES])}{more})" if named else ""
        return f"lower the learning rate{try_}, or {CLIP}"

    def _report(self) -> StepReport:
        report = self._pending.report(self.state.step)
        self.elapsed_secs += report.step_secs
        self.samples_here += report.samples
        self._pending = _Pending()
        return report

    @property
    def _last_step(self) -> bool:
        """Whether the update under way is the last one."""
        return self.length.num_steps is not None and self.state.step + 1 >= self.length.num_steps

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Note how long data are waited for."""
        self._doing("reading data")
        before = time.perf_counter()
        yield
        self._pending.data_wait_secs += time.perf_counter() - before

    def _asked_to_stop(self) -> bool:
        """Called some times a second by a loader whose rows do not come."""
        if self.processes.world_size == 1:  # several wait together: `Feed` says when
            self._while_waiting()
        return any(self.stop.flags())

    def _while_waiting(self) -> None:
        self._call("while_waiting")

    def _call(self, moment: str, *arguments: Any) -> None:
        for hook in self.hooks:
            getattr(hook, moment)(self, *arguments)


class _Pending:
    """What is known of the update under way, over its micro-batches."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.samples = 0
        self.micro_batches = 0
        self.data_wait_secs = 0.0
        self.excluded_secs = 0.0
        self.losses: dict[str, float] = {}
        self.rates: Mapping[str, float] = {}
        self.grad_norm: float | Tensor | None = None

    def add(self, samples: int, losses: Mapping[str, float]) -> None:
        self.samples += samples
        self.micro_batches += 1
        for name, value in losses.items():
            self.losses[name] = self.losses.get(name, 0.0) + value

    def report(self, step: int) -> StepReport:
        return StepReport(
            step=step,
            losses={name: value / max(self.micro_batches, 1) for name, value in self.losses.items()},
            rates=dict(self.rates),
            grad_norm=None if self.grad_norm is None else float(self.grad_norm),
            samples=self.samples,
            data_wait_secs=self.data_wait_secs,
            step_secs=time.perf_counter() - self.started - self.excluded_secs,
        )

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Time that is not the step's: evaluation and saving."""
        before = time.perf_counter()
        yield
        self.excluded_secs += time.perf_counter() - before


def _why_no_batch(loader: Loader) -> str:
    settings = loader.settings
    if not settings.drop_remainder:
        return "data: all rows of an epoch are bad, and none is left to train on; correct those named above"
    return (
        f"data: an epoch has no batch of {settings.batch_size:,} good rows; lower data_config.batch_size, "
        "or leave data_config.drop_remainder out"
    )


def _describe_origin(batch: Batch) -> str:
    """The files and row ranges of a batch, for an error message."""
    if batch.origin is None:
        return "of an unknown file"
    parts = []
    for index in torch.unique(batch.origin.file_index).tolist():
        rows = batch.origin.row[batch.origin.file_index == index]
        parts.append(f"{int(rows.min())}–{int(rows.max())} of {batch.origin.files[index]}")
    return "; ".join(parts)
