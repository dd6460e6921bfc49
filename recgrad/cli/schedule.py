"""`recgrad schedule`: the learning rates of a run, before it is run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from recgrad.cli.command import COMMANDS, Command
from recgrad.cli.run_flags import add_config_arguments, loaded_config
from recgrad.terminal import say

if TYPE_CHECKING:
    from recgrad.cli.plots import Line, Panel
    from recgrad.config import PipelineConfig
    from recgrad.optim.plan import PlannedPart

MOST_POINTS = 2000


@dataclass(frozen=True)
class Span:
    """How far a plot goes: updates, and how many of them make an epoch (None: unknown)."""

    steps: int
    steps_per_epoch: int | None
    unit: str = "update"


@COMMANDS.register("schedule")
class ScheduleCommand(Command):
    """Plot the learning rate of every group over the run, without reading any data.

    The run's length is --steps, or the config's num_steps. Schedules that go by epoch need to
    know how many updates an epoch has: --steps-per-epoch, or --steps together with the config's
    num_epochs. Without any of them the rows of the training files are counted, not read.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the flags."""
        add_config_arguments(parser)
        parser.add_argument("--steps", type=int, metavar="N", help="updates to plot (default: num_steps)")
        parser.add_argument("--steps-per-epoch", type=int, metavar="N", help="updates in an epoch")
        parser.add_argument("--out", metavar="PLOT.PNG", help="write a picture, too")
        parser.add_argument("--log", action="store_true", help="a logarithmic axis of rates")

    def run(self, args: argparse.Namespace) -> int:
        """Plots."""
        config = loaded_config(args, "schedule")
        from recgrad.cli.plots import save_picture
        from recgrad.cli.terminal_plot import show_panel
        from recgrad.optim.plan import plan_parts

        parts = plan_parts(config.train_config)
        per_epoch = args.steps_per_epoch
        if per_epoch is None and args.steps is None and not config.train_config.num_steps:
            per_epoch = count_updates(config)
        span = find_span(parts, config.train_config, args.steps, per_epoch)
        panels = build_panels(parts, span, log=args.log)
        for panel in panels:
            show_panel(panel)
        say(summarise(parts, span))
        if args.out:
            save_picture(panels, args.out)
            say(f"\nwrote {args.out}")
        return 0


def count_updates(config: PipelineConfig) -> int | None:
    """Updates in an epoch by the number of rows in the training files; None when they are not there."""
    from recgrad.data.features.build import features_of
    from recgrad.data.loader import build_loader
    from recgrad.errors import RecgradError
    from recgrad.models.targets import find_targets

    try:
        loader = build_loader(
            config,
            config.train_input_path,
            features=features_of(config),
            targets=find_targets(config),
            training=True,
        )
        batches = loader.num_batches
    except RecgradError:
        return None
    accumulated = config.train_config.gradient_accumulation_steps or 1
    return None if batches is None else max(-(-batches // accumulated), 1)


def find_span(
    parts: Sequence[PlannedPart], train: Any, steps: int | None, steps_per_epoch: int | None
) -> Span:
    """How far to plot; raises when the config and the flags leave it open."""
    from recgrad.errors import RecgradError

    for flag, value in (("--steps", steps), ("--steps-per-epoch", steps_per_epoch)):
        if value is not None and value < 1:
            raise RecgradError(f"recgrad schedule {flag}: must be at least 1, got {value}")
    by_epoch = [part.schedule.by_epoch for part in parts]
    epochs = train.num_epochs
    if steps is None and not train.num_steps and epochs:
        if steps_per_epoch:
            return Span(epochs * steps_per_epoch, steps_per_epoch)
        if all(by_epoch):
            return Span(epochs, 1, "epoch")
    steps = steps or train.num_steps
    if not steps:
        remedy = "--steps-per-epoch N" if epochs else "--steps N"
        raise RecgradError(f"recgrad schedule: the config has no num_steps; say how long with {remedy}")
    if any(by_epoch) and steps_per_epoch is None:
        if not epochs:
            names = ", ".join(part.name for part in parts if part.schedule.by_epoch)
            raise RecgradError(
                f"recgrad schedule: {names} goes by epoch; say how long one is with --steps-per-epoch N"
            )
        steps_per_epoch = max(-(-steps // epochs), 1)
    return Span(steps, steps_per_epoch)


def rates_of(part: PlannedPart, ns: Sequence[int], span: Span) -> list[float]:
    """The part's rate after each number of finished updates."""
    return [part.rate(count(part, n, span)) for n in ns]


def count(part: PlannedPart, n: int, span: Span) -> int:
    """What the part's schedule counts when n updates are finished."""
    return n // (span.steps_per_epoch or 1) if part.schedule.by_epoch else n


def sample(steps: int) -> list[int]:
    """0 … steps−1, thinned out evenly when there are many."""
    if steps <= MOST_POINTS:
        return list(range(steps))
    return sorted({round(i * (steps - 1) / (MOST_POINTS - 1)) for i in range(MOST_POINTS)})


def build_panels(parts: Sequence[PlannedPart], span: Span, *, log: bool = False) -> list[Panel]:
    """The rates of the dense parts and of the sparse parts, and the momenta where a schedule moves them."""
    from recgrad.cli.plots import Line, Panel

    ns = sample(span.steps)
    x_label = f"finished {span.unit}s"
    panels = []
    for half in ("dense", "sparse"):
        own = [part for part in parts if part.name.partition(".")[0] == half]
        lines = join_equal([Line(describe(part), ns, rates_of(part, ns, span)) for part in own])
        panels.append(
            Panel(f"{half} learning rates", lines, x_label, "learning rate", log_y=log, from_zero=True)
        )
    cycled = [part for part in parts if part.schedule.cycles_momentum and part.momentum]
    if cycled:
        lines = join_equal([Line(describe(part), ns, momenta_of(part, ns, span)) for part in cycled])
        panels.append(Panel("momentum (or beta1)", lines, x_label, "momentum"))
    return panels


def join_equal(lines: Sequence[Line]) -> list[Line]:
    """The lines without those that would lie under another, whose labels are joined."""
    joined: dict[tuple[float, ...], Line] = {}
    for line in lines:
        points = tuple(line.y)
        known = joined.get(points)
        joined[points] = line if known is None else replace(known, label=f"{known.label}, {line.label}")
    return list(joined.values())


def momenta_of(part: PlannedPart, ns: Sequence[int], span: Span) -> list[float]:
    """The momentum that the schedule sets; not a number where it sets none."""
    momenta = [part.schedule.momentum(count(part, n, span)) for n in ns]
    return [float("nan") if momentum is None else momentum for momentum in momenta]


def describe(part: PlannedPart) -> str:
    """The part and its schedule, for the legend."""
    return f"{part.name} ({type(part.schedule).__name__})"


def summarise(parts: Sequence[PlannedPart], span: Span) -> str:
    """A line for each part: its first, highest and last rate, and what the plot cannot show."""
    rows = [("part", "schedule", "first", "highest", "at", "last")]
    ns = sample(span.steps)
    for part in parts:
        rates = rates_of(part, ns, span)
        top = max(range(len(rates)), key=rates.__getitem__)
        name = type(part.schedule).__name__
        rows.append(
            (part.name, name, f"{rates[0]:.4g}", f"{rates[top]:.4g}", f"{ns[top]:,}", f"{rates[-1]:.4g}")
        )
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]
    waiting = dict.fromkeys(
        type(part.schedule).__name__ for part in parts if part.schedule.metric is not None
    )
    for name in waiting:
        lines.append(f"{name} waits for evaluations: its line is the rate before the first.")
    return "\n".join(lines)
