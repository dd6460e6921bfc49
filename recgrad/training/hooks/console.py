"""The run on the terminal: a progress bar for people, plain lines for files and pipes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from recgrad.terminal import printable, say
from recgrad.training.hook import StepReport
from recgrad.training.hooks.facts import describe_bytes
from recgrad.training.hooks.log import LogRecord
from recgrad.training.state import describe_metrics
from recgrad.training.trainer import Trainer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, TaskID


_log = logging.getLogger("recgrad.training")


def build_console_sink(
    evaluation_every: int = 0, *, is_terminal: bool | None = None
) -> ProgressBar | PlainLines:
    """A bar when standard error is a terminal, else lines, as `PlainLines` has them."""
    terminal = sys.stderr.isatty() if is_terminal is None else is_terminal
    return ProgressBar() if terminal else PlainLines(evaluation_every)


def log_progress(every: int, doing: Callable[[str], None] | None = None) -> Callable[[int, int | None], None]:
    """Logs a line about an evaluation that is under way each `every` batches; 0: never.

    `doing` is told of each batch: other ranks may wait for this one.
    """

    def progress(done: int, total: int | None) -> None:
        if doing is not None:
            doing(f"evaluating batch {_count(done, total)}")
        if every and done % every == 0:
            _log.info("evaluated %s batches", _count(done, total))

    return progress


@contextmanager
def evaluation_bar() -> Iterator[Callable[[int, int | None], None] | None]:
    """What shows how far an evaluation is, on a terminal and until it ends; None elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    with _build_progress(None, transient=True) as bar:
        task = bar.add_task("evaluating", total=None, count="", numbers=())
        yield lambda done, total: bar.update(task, completed=done, total=total, count=_count(done, total))


class PlainLines:
    """One line a record, one an evaluation, and one each `evaluation_every` batches of it (0: none)."""

    def __init__(self, evaluation_every: int = 0) -> None:
        self._progress = log_progress(evaluation_every)

    def start(self, trainer: Trainer) -> None:
        if trainer.state.step:
            self._say(f"continuing after step {trainer.state.step}")

    def step(self, trainer: Trainer, report: StepReport) -> None:
        """Steps are not shown one by one."""

    def record(self, trainer: Trainer, record: LogRecord) -> None:
        self._say(f"step {record.step}  {describe_record(record)}")

    def evaluating(self, trainer: Trainer, done: int, total: int | None) -> None:
        self._progress(done, total)

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
        self._evaluation: TaskID | None = None
        self._recorded = False

    def start(self, trainer: Trainer) -> None:
        total = _total_steps(trainer)
        done = trainer.state.step
        self._progress.start()
        self._task = self._progress.add_task(
            "training", total=total, completed=done, count=_count(done, total), numbers=()
        )

    def step(self, trainer: Trainer, report: StepReport) -> None:
        assert self._task is not None
        total = self._progress.tasks[0].total
        self._progress.update(self._task, completed=report.step, count=_count(report.step, total))
        if not self._recorded:  # the first record may be long in coming
            numbers = [*_losses(report.losses), *_rates(report.rates)]
            self._progress.update(self._task, numbers=numbers)

    def record(self, trainer: Trainer, record: LogRecord) -> None:
        assert self._task is not None
        self._recorded = True
        self._progress.update(self._task, numbers=_parts(record))

    def evaluating(self, trainer: Trainer, done: int, total: int | None) -> None:
        count = _count(done, total)
        if self._evaluation is None:
            self._evaluation = self._progress.add_task("evaluating", total=total, count=count, numbers=())
        self._progress.update(self._evaluation, completed=done, count=count)

    def evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self._end_evaluation()
        self._say(f"step {trainer.state.step}  evaluation: {describe_metrics(metrics)}")

    def end(self, trainer: Trainer) -> None:
        if trainer.state.stopped:
            self._say(trainer.state.stopped)

    def close(self) -> None:
        self._end_evaluation()
        self._progress.stop()

    def _end_evaluation(self) -> None:
        if self._evaluation is not None:
            self._progress.remove_task(self._evaluation)
            self._evaluation = None

    def _say(self, text: str) -> None:
        self._progress.console.print(printable(text), markup=False, highlight=False)


def _build_progress(console: Console | None, *, transient: bool = False) -> Progress:
    # Runs without a terminal do not wait for these.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    class BarAboveNumbers(Progress):
        """In one line with the bar, the numbers would leave no room for the step on 80 columns."""

        def get_renderables(self) -> Iterator[RenderableType]:
            yield from super().get_renderables()
            for task in self.tasks:
                for line in filled_lines(task.fields["numbers"], self.console.width):
                    yield Text(printable(line))

    return BarAboveNumbers(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console or Console(stderr=True),
        refresh_per_second=4,
        transient=transient,
    )


def describe_record(record: LogRecord) -> str:
    """Losses, rates, metrics and throughput in one line."""
    return "  ".join(_parts(record))


def filled_lines(parts: Sequence[str], width: int) -> list[str]:
    """The parts in lines of at most `width`, none of them torn apart unless it alone is longer."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}  {part}" if lines else part
        if lines and len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines


def _parts(record: LogRecord) -> list[str]:
    parts = _losses(record.losses)
    parts += [f"{name} {value:.4f}" for name, value in record.metrics.items()]
    parts += _rates(record.rates)
    parts.append(f"{record.samples_per_sec:,.0f} samples/s")
    parts.append(f"data wait {record.data_wait_share:.0%}")
    if record.resident_bytes is not None:
        parts.append(f"memory {describe_bytes(record.resident_bytes)}")
    if record.cpu_share is not None:
        parts.append(f"CPU {record.cpu_share:.0%}")
    if record.skipped:
        parts.append(f"{record.skipped} skipped")
    if record.event_time is not None:
        moment = datetime.fromtimestamp(record.event_time, timezone.utc)
        parts.append(f"events of {moment:%Y-%m-%d %H:%M:%S}")
    if record.lag is not None:
        parts.append(f"lag {record.lag:,.0f}")
    if record.turnover:
        tables = record.turnover.values()
        gone = sum(own.evicted + own.expired for own in tables)
        parts.append(
            f"ids {sum(own.live for own in tables):,} (+{sum(own.admitted for own in tables):,} −{gone:,})"
        )
    return parts


def _losses(losses: Mapping[str, float]) -> list[str]:
    """The terms of the loss, after their sum where there are several."""
    parts = [f"{name} {value:.5f}" for name, value in losses.items() if name != "total"]
    return parts if len(parts) == 1 else [f"loss {losses['total']:.5f}", *parts]


def _rates(rates: Mapping[str, float]) -> list[str]:
    return [f"lr[{name}] {rate:.3g}" for name, rate in rates.items()]


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
