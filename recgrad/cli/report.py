"""`recgrad report`: one HTML file about a run."""

from __future__ import annotations

import argparse

from recgrad.cli.command import COMMANDS, Command
from recgrad.cli.run_flags import (
    add_custom_code_argument,
    add_device_argument,
    add_threads_argument,
    device_of,
)
from recgrad.terminal import say


@COMMANDS.register("report")
class ReportCommand(Command):
    """Write one self-contained HTML file about a run: curves, calibration, config, environment."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("model_dir", metavar="MODEL_DIR", help="the model_dir of a run")
        parser.add_argument("--out", metavar="FILE", help="(default: MODEL_DIR/report.html)")
        add_device_argument(parser)
        add_threads_argument(parser)
        add_custom_code_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        from pathlib import Path

        from recgrad.report.page import write_report
        from recgrad.training.hooks.tracking import attach_file
        from recgrad.training.runtime import set_up_process

        set_up_process(args.num_threads)
        made = write_report(
            args.model_dir, args.out, device=device_of(args), custom_code=not args.no_custom_code
        )
        say(f"wrote {made}")
        for tracker in attach_file(Path(args.model_dir), made):
            say(f"attached it to the run of {tracker}")
        return 0
