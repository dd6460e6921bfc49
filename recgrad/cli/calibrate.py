"""`recgrad calibrate`: probabilities that are as high as what is observed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.cli.console import table_console
from recgrad.cli.run_flags import (
    add_custom_code_argument,
    add_device_argument,
    add_threads_argument,
    device_of,
)
from recgrad.terminal import say

if TYPE_CHECKING:
    from recgrad.export.calibrate import CalibrationReport


@COMMANDS.register("calibrate")
class Calibrate(Command):
    """Fit probabilities to observed rates on a file, and store that with the model.

    `predict`, `export`, `serve` and recgrad.load_model apply it from then on; --raw_scores of predict and
    export leaves it out. It belongs to one checkpoint: with another one they refuse it. Take rows that the
    model was not trained on.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("model", metavar="MODEL", help="the model_dir of a run, or a checkpoint in it")
        parser.add_argument("--data", metavar="PATH", required=True, help="rows with labels to fit on")
        parser.add_argument(
            "--method",
            choices=("platt", "isotonic"),
            default="platt",
            help="a line through the logits, or rising steps (default: platt)",
        )
        parser.add_argument(
            "--checkpoint-path", metavar="PATH", help="a checkpoint (default: best or newest)"
        )
        parser.add_argument(
            "--plot", metavar="FILE", help="reliability diagram (default: calibration.png in the model_dir)"
        )
        parser.add_argument("--edit-config-json", metavar="JSON", help="changes to the config")
        add_custom_code_argument(parser)
        add_device_argument(parser)
        add_threads_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        with heavy_imports():
            from recgrad.export.calibrate import calibrate
            from recgrad.report.reliability import write_reliability
            from recgrad.training.runtime import set_up_process

        set_up_process(args.num_threads)
        report = calibrate(
            args.model,
            args.data,
            method=args.method,
            checkpoint_path=args.checkpoint_path,
            edit_config_json=args.edit_config_json,
            device=device_of(args),
            custom_code=not args.no_custom_code,
        )
        _print(report)
        plot = args.plot or str(report.path.with_suffix(".png"))
        write_reliability(
            plot,
            {n: ({"raw": t.raw, "calibrated": t.calibrated}, t.labels) for n, t in report.tasks.items()},
        )
        say(f"wrote {report.path}, of {report.calibration.checkpoint}, and {plot}")
        return 0


def _print(report: CalibrationReport) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("output")
    for head in ("calibration error", "calibrated", "log loss", "calibrated", "AUC", "calibrated"):
        table.add_column(head, justify="right")
    for name, task in report.tasks.items():
        pairs = zip(
            (task.before.ece, task.before.log_loss, task.before.auc),
            (task.after.ece, task.after.log_loss, task.after.auc),
            strict=True,
        )
        table.add_row(name, *(f"{value:.6f}" for pair in pairs for value in pair))
    table_console().print(table)
    rows = f"{report.calibration.rows:,} rows"
    if all(task.unseen for task in report.tasks.values()):
        say(f"{rows}; each row's calibrated score is by a fit to the other four fifths")
    else:
        say(f"{rows}: too few to measure on others than those fitted on, so what is gained is flattered")
    for name in report.left_out:
        say(f"{name} is left as it is: it is no probability of two classes")
