"""`recgrad repeat`: the same config with several seeds."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.cli.console import table_console
from recgrad.cli.run_flags import (
    add_config_arguments,
    add_device_argument,
    add_threads_argument,
    device_of,
    loaded_config,
)
from recgrad.errors import RecgradError
from recgrad.terminal import say

if TYPE_CHECKING:
    from recgrad.experiments.runs import Run


@COMMANDS.register("repeat")
class Repeat(Command):
    """Train a config with several seeds; prints mean, deviation and interval of every metric.

    Each run is an ordinary model_dir, OUT/seed-N. Runs that are done there are taken as they are and one
    that was killed goes on, so the same command may be given again, also with more seeds.
    `recgrad compare OUT_A OUT_B` tells whether two such sets differ.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config_arguments(parser)
        parser.add_argument(
            "--seeds", default="5", help="how many (0, 1, 2 …), or which: 3,7,8 (default: %(default)s)"
        )
        parser.add_argument("--out", metavar="DIR", help="(default: the config's model_dir with _repeat)")
        parser.add_argument(
            "--confidence", type=float, default=0.95, help="of the intervals (default: %(default)s)"
        )
        add_threads_argument(parser)
        add_device_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        from pathlib import Path

        with heavy_imports():
            from recgrad.experiments.repeat import parse_seeds, repeat
            from recgrad.training.runtime import set_up_process
            from recgrad.training.state import describe_metrics

        check_confidence(args.confidence)
        seeds = parse_seeds(args.seeds)
        config = loaded_config(args, "repeat")
        if not (args.out or config.model_dir):
            raise RecgradError("recgrad repeat: name a folder with --out; the config has no model_dir")
        out = Path(args.out or f"{config.model_dir.rstrip('/')}_repeat")
        set_up_process(args.num_threads)
        runs: list[Run] = []
        made = repeat(config, seeds, out, custom_code=not args.no_custom_code, device=device_of(args))
        for seed, run, result in made:
            if result is not None and result.exit_code:
                say(f"stopped; the same command goes on with seed {seed}", error=True)
                return result.exit_code
            runs.append(run)
            say(f"seed {seed}: {describe_metrics(run.metrics)}" + ("" if result else "  (done before)"))
        print_summary(runs, args.confidence)
        say(f"compare with another set: recgrad compare {out} OTHER")
        return 0


def check_confidence(confidence: float) -> None:
    """Raise for a confidence that is no share."""
    if not 0 < confidence < 1:
        raise RecgradError(f"--confidence: must be above 0 and below 1, got {confidence}")


def print_summary(runs: list[Run], confidence: float) -> None:
    """A line for each metric: mean, deviation, interval of the mean."""
    from rich.table import Table

    from recgrad.experiments.sets import summarize

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("metric")
    for head in ("mean", "deviation", f"{confidence:.0%} interval of the mean", "runs"):
        table.add_column(head, justify="right")
    for name, found in summarize(runs, confidence).items():
        span = f"{found.low:.6f} to {found.high:.6f}" if len(runs) > 1 else "needs two runs"
        deviation = f"{found.deviation:.6f}" if len(runs) > 1 else ""
        table.add_row(name, f"{found.mean:.6f}", deviation, span, str(len(runs)))
    table_console().print(table)
