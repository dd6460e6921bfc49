"""The run on the terminal: a progress bar for people, plain lines for files and pipes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from recgrad.terminal import printable, say
from recgrad.training.hooks.base import StepReport
from recgrad.training.hooks.log import LogRecord
from recgrad.training.trainer import Trainer
from recgrad.training.usage import describe_bytes

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, TaskID


def build_console_sink(*, is_terminal: bool | None = None) -> ProgressBar | PlainLines:
    """A bar when standard error is a terminal, else lines."""
    terminal = sys.stderr.isatty() if is_terminal is None else is_terminal
    return ProgressBar() if terminal else PlainLines()


class PlainLines:
    """One line a record, one an evaluation."""

    def start(self, trainer: Trainer) -> None:
        if trainer.state.step:
            self._say(f"continuing after step {trainer.state.step}")

    def step(self, trainer: Trainer, report: StepReport) -> None:
        """Steps are not shown one by one."""

    def record(self, trainer: Trainer, record: LogRecord) -> None:
        self._say(f"step {record.step}  {describe_record(record)}")

    def evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self._say(f"step {trainer.state.step}  evaluation: {describe_metrics(metrics)}")

    def end(self, trainer: Trainer) -> None:
        if trainer.state.stopped:
            self._say(trainer.state.stopped)

    def close(self) -> None:
        """Nothing is held."""

    def _say(self, text: str) -> None:
        say(text, error=True)


class ProgressBar:
    """A live bar with the step and the time that remains; losses, rates, metrics and throughput below it."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = _build_progress(console)
        self._task: TaskID | None = None

    def start(self, trainer: Trainer) -> None:
        total = _total_steps(trainer)
        done = trainer.state.step
        self._progress.start()
        self._task = self._progress.add_task(
            "training", total=total, completed=done, count=_count(done, total), numbers=""
        )

    def step(self, trainer: Trainer, report: StepReport) -> None:
        assert self._task is not None
        total = self._progress.tasks[0].total
        self._progress.update(self._task, completed=report.step, count=_count(report.step, total))

    def record(self, trainer: Trainer, record: LogRecord) -> None:
        assert self._task is not None
        self._progress.update(self._task, numbers=describe_record(record))

    def evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self._say(f"step {trainer.state.step}  evaluation: {describe_metrics(metrics)}")

    def end(self, trainer: Trainer) -> None:
        if trainer.state.stopped:
            self._say(trainer.state.stopped)

    def close(self) -> None:
        self._progress.stop()

    def _say(self, text: str) -> None:
        self._progress.console.print(printable(text), markup=False, highlight=False)


def _build_progress(console: Console | None) -> Progress:
    # Runs without a terminal do not wait for these.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    class BarAboveNumbers(Progress):
        """In one line with the bar, the numbers would leave no room for the step on 80 columns."""

        def get_renderables(self) -> Iterator[RenderableType]:
            yield from super().get_renderables()
            yield from (
                Text(printable(task.fields["numbers"])) for task in self.tasks if task.fields["numbers"]
            )

    return BarAboveNumbers(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console or Console(stderr=True),
        refresh_per_second=4,
    )


def describe_record(record: LogRecord) -> str:
    """Losses, rates, metrics and throughput in one line."""
    parts = [f"{name} {value:.5f}" for name, value in record.losses.items() if name != "total"]
    if len(parts) != 1:
        parts.insert(0, f"loss {record.losses['total']:.5f}")
    parts += [f"{name} {value:.4f}" for name, value in record.metrics.items()]
    parts += [f"lr[{name}] {rate:.3g}" for name, rate in record.rates.items()]
    parts.append(f"{record.samples_per_sec:,.0f} samples/s")
    parts.append(f"data wait {record.data_wait_share:.0%}")
    if record.resident_bytes is not None:
        parts.append(f"memory {describe_bytes(record.resident_bytes)}")
    if record.cpu_share is not None:
        parts.append(f"CPU {record.cpu_share:.0%}")
    if record.skipped:
        parts.append(f"{record.skipped} skipped")
    return "  ".join(parts)


def describe_metrics(metrics: Mapping[str, float]) -> str:
    """Metrics sorted by name."""
    return "  ".join(f"{name} {metrics[name]:.6f}" for name in sorted(metrics)) or "no metrics configured"


def _total_steps(trainer: Trainer) -> int | None:
    """The length of the run in updates, where it is known beforehand."""
    if trainer.length.num_steps is not None:
        return trainer.length.num_steps
    batches = trainer.loader.num_batches
    if batches is None or trainer.length.num_epochs is None:
        return None
    updates = -(-batches // trainer.updater.accumulation_steps)
    return updates * trainer.length.num_epochs


def _count(done: int, total: float | None) -> str:
    return f"{done:,}" if total is None else f"{done:,}/{int(total):,}"
