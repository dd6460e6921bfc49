"""Logging: sums up the steps since the last line and hands the summary to every sink."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from recgrad.embedding.engine import NO_TURNOVER, EmbeddingEngine, Turnover
from recgrad.errors import RecgradError
from recgrad.training.hook import Hook, StepReport
from recgrad.training.hooks.facts import Usage, UsageMeter
from recgrad.training.processes import Processes
from recgrad.training.trainer import Trainer


@dataclass(frozen=True)
class LogRecord:
    """The steps since the last record.

    Attributes:
        step: updates finished.
        epoch: passes finished.
        losses: means of the loss terms.
        rates: learning rates of the last step.
        metrics: decayed training metrics.
        grad_norm: norm of the dense gradients at the last step, when it was computed.
        samples_per_sec: rows trained on per second.
        data_wait_share: the share of the time that the loop waited for data.
        samples: rows trained on since the run began.
        skipped: updates left out since the run began, because of a loss or gradient that is not finite.
        resident_bytes: memory of this process, of several the one that logs; None where it is not known.
        table_bytes: what this process' tables take: rows, their optimizer's state, indices.
        cpu_share: processor time of this process since the last record over that of the cores it may
            use, evaluation and saving counted.
        turnover: by table whose rows belong to ids as they come, what has come and gone since the run began.
        event_time: of the latest event, in seconds since 1970; None where rows have no times.
        lag: messages that wait at the brokers; None where that is not known.
    """

    step: int
    epoch: int
    losses: Mapping[str, float]
    rates: Mapping[str, float]
    metrics: Mapping[str, float]
    grad_norm: float | None
    samples_per_sec: float
    data_wait_share: float
    samples: int
    skipped: int
    resident_bytes: int | None = None
    table_bytes: int = 0
    cpu_share: float | None = None
    turnover: Mapping[str, Turnover] = field(default_factory=dict)
    event_time: float | None = None
    lag: float | None = None


class Sink(Protocol):
    """Where records go."""

    def start(self, trainer: Trainer) -> None:
        """Before the first step."""

    def step(self, trainer: Trainer, report: StepReport) -> None:
        """Each step; must cost next to nothing."""

    def record(self, trainer: Trainer, record: LogRecord) -> None:
        """Each log interval."""

    def evaluating(self, trainer: Trainer, done: int, total: int | None) -> None:
        """Each batch of an evaluation; must cost next to nothing."""

    def evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Each evaluation."""

    def end(self, trainer: Trainer) -> None:
        """After the last step."""

    def close(self) -> None:
        """Release what is held."""


class Log(Hook):
    """Makes a record every `every_steps` updates, and of the rest at the end."""

    def __init__(self, every_steps: int, sinks: Sequence[Sink]) -> None:
        self.every_steps = max(every_steps, 1)
        self.sinks = tuple(sinks)
        self._reports: list[StepReport] = []
        self._meter = UsageMeter()

    def on_start(self, trainer: Trainer) -> None:
        self._meter = UsageMeter(trainer.processes.environment.local_world_size)
        for sink in self.sinks:
            sink.start(trainer)

    def after_step(self, trainer: Trainer, report: StepReport) -> None:
        self._reports.append(report)
        for sink in self.sinks:
            sink.step(trainer, report)
        if report.step % self.every_steps == 0:
            self._flush(trainer)

    def during_evaluation(self, trainer: Trainer, done: int, total: int | None) -> None:
        for sink in self.sinks:
            sink.evaluating(trainer, done, total)

    def after_evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self._flush(trainer)
        for sink in self.sinks:
            sink.evaluation(trainer, metrics)

    def on_end(self, trainer: Trainer) -> None:
        self._flush(trainer)
        for sink in self.sinks:
            sink.end(trainer)

    def close(self, trainer: Trainer) -> None:
        for sink in self.sinks:
            sink.close()

    def _flush(self, trainer: Trainer) -> None:
        if not self._reports:
            return
        record = summarise(self._reports, trainer, self._meter.look())
        self._reports = []
        for sink in self.sinks:
            sink.record(trainer, record)


@contextmanager
def writing_to(place: str | Path) -> Iterator[None]:
    """Names the file or folder that cannot be written: the system's error alone does not.

    Raises:
        RecgradError: writing failed, as on a full disk.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecgradError(
            f"{place}: cannot write ({reason}); mend that, then resume with --continue_train"
        ) from error


def summarise(reports: Sequence[StepReport], trainer: Trainer, usage: Usage) -> LogRecord:
    """The record of some steps, and of what the process took meanwhile."""
    last = reports[-1]
    secs = sum(report.step_secs for report in reports)
    names = dict.fromkeys(name for report in reports for name in report.losses)
    losses = {name: sum(report.losses.get(name, 0.0) for report in reports) / len(reports) for name in names}
    engine = trainer.task.model.engine
    return LogRecord(
        step=last.step,
        epoch=trainer.state.epoch,
        losses=losses,
        rates=last.rates,
        metrics=trainer.task.train_metrics(),
        grad_norm=last.grad_norm,
        samples_per_sec=sum(report.samples for report in reports) / max(secs, 1e-9),
        data_wait_share=sum(report.data_wait_secs for report in reports) / max(secs, 1e-9),
        samples=trainer.state.samples,
        skipped=trainer.state.skipped,
        resident_bytes=usage.resident_bytes,
        table_bytes=trainer.task.model.memory()["tables"],
        cpu_share=usage.cpu_share,
        turnover={} if engine is None else _turnover(engine, trainer.processes),
        event_time=None if trainer.state.event_time < 0 else trainer.state.event_time,
        lag=trainer.stream.lag,
    )


def _turnover(engine: EmbeddingEngine, processes: Processes) -> dict[str, Turnover]:
    """What has come and gone by table, on rank 0 of all ranks; all are to call it."""
    tables = engine.living_tables()
    if not tables:
        return {}
    found = dict.fromkeys(tables, NO_TURNOVER)
    for own in processes.collect({name: table.turnover() for name, table in tables.items()}):
        found = {name: total.plus(own[name]) for name, total in found.items()}
    return found
