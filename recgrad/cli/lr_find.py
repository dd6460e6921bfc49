"""`recgrad lr-find`: which learning rates a model can take."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from recgrad.cli.command import COMMANDS, Command
from recgrad.cli.run_flags import (
    add_config_arguments,
    add_device_argument,
    add_threads_argument,
    config_path,
    device_of,
)
from recgrad.terminal import say

if TYPE_CHECKING:
    from recgrad.cli.plots import Panel
    from recgrad.optim.range_test import RangeTest
    from recgrad.training.assembly import Training
    from recgrad.training.processes import Processes

HALVES = ("dense", "sparse")


@COMMANDS.register("lr-find")
class LrFind(Command):
    """Try rising learning rates on a fresh model, and suggest one for each half.

    Trains for a few updates at rates that rise from --start to --end, the dense and the sparse
    rate one after the other, each on a model of its own; the other half rests meanwhile, so
    that what the loss does is this rate's doing. Part optimizers keep their ratio to the main
    one. The suggestion is where the smoothed loss fell fastest. Nothing is written but the
    picture: the model dir is not touched.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the flags."""
        add_config_arguments(parser)
        parser.add_argument("--train-input-path", metavar="PATH", help="instead of the config's")
        parser.add_argument(
            "--half", choices=(*HALVES, "both"), default="both", help="which rate (default: %(default)s)"
        )
        parser.add_argument("--start", type=float, default=1e-6, help="lowest rate (default: %(default)g)")
        parser.add_argument("--end", type=float, default=10.0, help="highest rate (default: %(default)g)")
        parser.add_argument(
            "--steps", type=int, default=100, metavar="N", help="updates to make (default: %(default)s)"
        )
        parser.add_argument("--out", metavar="PLOT.PNG", help="write a picture, too")
        add_device_argument(parser)
        add_threads_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Tests and plots."""
        path = config_path(args, "lr-find")
        from recgrad.cli.plots import save_picture
        from recgrad.cli.terminal_plot import show_panel
        from recgrad.training.preflight import prepare_config
        from recgrad.training.processes import Processes, choose_device
        from recgrad.training.runtime import computing, set_up_process

        set_up_process(args.num_threads)
        config, report = prepare_config(
            path,
            edit_config_json=args.edit_config_json,
            train_input_path=args.train_input_path,
            ranks=0,
            custom_code=not args.no_custom_code,
        )
        report.raise_problems()
        processes = Processes(device=choose_device(device_of(args)))
        panels = []
        for half in HALVES if args.half == "both" else (args.half,):
            with computing():
                result = find_rate(config, half, processes, start=args.start, end=args.end, steps=args.steps)
            panels.append(build_panel(half, result))
            show_panel(panels[-1])
            say(f"{half}: {advice(result)}\n")
        if args.out:
            save_picture(panels, args.out)
            say(f"wrote {args.out}")
        return 0


def find_rate(config: Any, half: str, processes: Processes, **options: Any) -> RangeTest:
    """A range test of one half's rate, on a model built again from the config."""
    from recgrad.errors import RecgradError
    from recgrad.optim.range_test import range_test
    from recgrad.training.assembly import build_training
    from recgrad.training.runtime import seed_everything

    seed_everything(config.train_config.seed)
    training = build_training(config, processes)
    if half == "sparse" and not training.updater.sparse:
        raise RecgradError(
            "recgrad lr-find --half sparse: the model has no embedding tables; use --half dense"
        )
    try:
        return range_test(stepper(training, half), **options)
    except ValueError as error:
        raise RecgradError(f"recgrad lr-find: {error}") from error


def stepper(training: Training, half: str) -> Callable[[float], float]:
    """A function that makes one update at a rate and returns the mean loss of its batches."""
    from recgrad.optim.range_test import rest, set_rate

    updater, task = training.updater, training.task
    tested, other = (updater.dense, updater.sparse) if half == "dense" else (updater.sparse, updater.dense)
    batches = endless(training)
    task.train()

    def step(rate: float) -> float:
        losses: list[float] = []
        while True:
            batch = next(batches)
            with updater.autocast():
                total = task.losses(task(batch), batch)["total"]
            losses.append(float(total.detach()))
            updater.backward(total)
            set_rate(tested, rate)
            rest(other)
            result = updater.step()
            if result.updated or result.skipped:
                return sum(losses) / len(losses)

    return step


def endless(training: Training) -> Iterator[Any]:
    """The training batches, epoch after epoch."""
    from recgrad.errors import RecgradError

    epoch = 0
    while True:
        seen = False
        for batch in training.train_loader.epoch(epoch):
            seen = True
            yield batch
        if not seen:
            raise RecgradError("recgrad lr-find: the training input has no rows")
        epoch += 1


def build_panel(half: str, result: RangeTest) -> Panel:
    """The losses over the rates."""
    from recgrad.cli.plots import Line, Panel

    marks = [(result.lowest, "lowest")]
    if result.suggestion is not None:
        marks.insert(0, (result.suggestion, "suggested"))
    # One loss that shot up would flatten the rest of the plot.
    cap = 1.2 * max(result.smoothed)
    lines = [
        Line("loss of each update", result.rates, [min(loss, cap) for loss in result.losses], faint=True),
        Line("smoothed", result.rates, result.smoothed),
    ]
    return Panel(f"{half} learning rate", lines, f"{half} learning rate", "loss", log_x=True, marks=marks)


def advice(result: RangeTest) -> str:
    """The suggestion in words."""
    if result.suggestion is None:
        return "the loss fell at no rate; try others with --start and --end"
    end = "above that it grew out of bounds" if result.diverged else "it never grew out of bounds"
    return f"try lr: {result.suggestion:.2g} (the loss was lowest at {result.lowest:.2g}; {end})"
