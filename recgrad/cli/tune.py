"""`recgrad tune`: search for better settings."""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.cli.console import table_console
from recgrad.cli.run_flags import (
    add_config_arguments,
    add_device_argument,
    add_threads_argument,
    config_path,
    device_of,
    loaded_config,
)
from recgrad.errors import RecgradError
from recgrad.terminal import say

if TYPE_CHECKING:
    from recgrad.experiments.tune import TuneSettings

_WORKER = "worker"


@COMMANDS.register("tune")
class Tune(Command):
    """Search for better settings of a config, by the evaluations of many runs (needs the extra tune).

    Trials are ordinary model_dirs, OUT/trial-N, that Hyperband stops early where they fall behind at an
    evaluation. The same command goes on where it was stopped, and may run several times at once, on several
    machines with --storage. Writes OUT/best.config and OUT/report.html.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config_arguments(parser)
        parser.add_argument(
            "--space",
            metavar="SPACE.yaml",
            help="paths of the config and their values (default: rates, schedules, widths, dropout …)",
        )
        parser.add_argument("--trials", type=int, default=30, metavar="N", help="(default: %(default)s)")
        parser.add_argument(
            "--jobs", type=int, default=1, metavar="J", help="trials at once (default: %(default)s)"
        )
        parser.add_argument("--metric", default="", help="to go by (default: the config's first)")
        parser.add_argument("--out", metavar="DIR", help="(default: the config's model_dir with _tune)")
        parser.add_argument("--storage", default="", metavar="URL", help="of Optuna, such as postgresql://…")
        parser.add_argument("--seed", type=int, default=0, help="of the search (default: %(default)s)")
        parser.add_argument(f"--{_WORKER}", action="store_true", help=argparse.SUPPRESS)
        add_threads_argument(parser, "of each trial ")
        add_device_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        for flag in ("trials", "jobs"):
            if getattr(args, flag) < 1:
                raise RecgradError(f"recgrad tune --{flag}: must be at least 1, got {getattr(args, flag)}")
        with heavy_imports():
            from recgrad.experiments.tune import open_study, resume_killed, run_trials
            from recgrad.training.runtime import set_up_process

        settings = _settings(args)
        study = open_study(settings)
        if not args.worker:
            resumed = resume_killed(study)
            if resumed:
                say(f"{resumed} trial{'s' if resumed > 1 else ''} that had been killed will go on")
            for dimension in settings.space:
                say(f"  {dimension.path}: {dimension.kind} {list(dimension.values)}")
        if args.jobs > 1 and not args.worker:
            code = _run_workers(args)
        else:
            set_up_process(args.num_threads)
            code = 0
            run_trials(study, settings, say)
        if not args.worker and code == 0:
            _finish(study, settings)
        return code


def _settings(args: argparse.Namespace) -> TuneSettings:
    from pathlib import Path

    from recgrad.experiments.space import check_space, default_space, load_space
    from recgrad.experiments.tune import TuneSettings, find_metric, import_optuna

    import_optuna()
    config = loaded_config(args, "tune")
    metric, larger = find_metric(config, args.metric)
    space = load_space(args.space) if args.space else default_space(config)
    check_space(config, space)
    if not (args.out or config.model_dir):
        raise RecgradError("recgrad tune: name a folder with --out; the config has no model_dir")
    out = Path(args.out or f"{config.model_dir.rstrip('/')}_tune")
    return TuneSettings(
        config,
        space,
        out,
        args.trials,
        metric,
        larger,
        args.storage,
        args.seed,
        device_of(args),
        not args.no_custom_code,
    )


def _run_workers(args: argparse.Namespace) -> int:
    """The same command in several processes, which share the study; the largest exit code."""
    from recgrad.cores import available_cores

    line = [sys.executable, "-m", "recgrad", "tune", config_path(args, "tune"), f"--{_WORKER}"]
    line += ["--num-threads", str(args.num_threads or max(1, available_cores() // args.jobs))]
    for name in ("edit_config_json", "space", "trials", "metric", "out", "storage", "seed", "device"):
        value = getattr(args, name)
        if value not in (None, ""):
            line.append(f"--{name.replace('_', '-')}={value}")
    if args.no_custom_code:
        line.append("--no-custom-code")
    workers = [subprocess.Popen(line) for _ in range(args.jobs)]
    try:
        return max(worker.wait() for worker in workers)
    except BaseException:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
        raise


def _finish(study: object, settings: TuneSettings) -> None:
    from rich.table import Table
    from rich.text import Text

    from recgrad.experiments.tune import write_best
    from recgrad.experiments.tune_page import importance, short, write_page

    best = write_best(study, settings)
    if best is None:
        raise RecgradError("tune: no trial was finished; see the messages above")
    shares = importance(study)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("changed", "best", "importance"):
        table.add_column(head)
    for name, value in study.best_trial.params.items():  # type: ignore[attr-defined]
        share = f"{shares[name]:.0%}" if name in shares else ""
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        table.add_row(Text(short(name)), Text(shown), share)
    table_console().print(table)
    value = study.best_value  # type: ignore[attr-defined]
    say(f"best {settings.metric} {value:.6f}, trial {study.best_trial.number}")  # type: ignore[attr-defined]
    say(f"wrote {write_page(study, settings.metric, settings.out / 'report.html')}")
    say(f"wrote {best}; train it with: recgrad train {best}")
