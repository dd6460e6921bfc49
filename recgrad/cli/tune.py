"""`recgrad tune`: search for better settings."""

from __future__ import annotations

import argparse
import subprocess
import sys
from contextlib import ExitStack, suppress
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
        with ExitStack() as stack:
            workers = stack.enter_context(_Workers(args)) if args.jobs > 1 and not args.worker else None
            with heavy_imports():
                from recgrad.experiments.tune import begin_with_own, open_study, resume_killed, run_trials
                from recgrad.training.runtime import set_up_process

            if args.worker and not sys.stdin.readline():
                return 0  # the command that started this process has refused the config, and said why
            settings = _settings(args)
            study = open_study(settings)
            if not args.worker:
                begin_with_own(study, settings.space)
                resumed = resume_killed(study)
                if resumed:
                    say(f"{resumed} trial{'s' if resumed > 1 else ''} that had been killed will go on")
                for dimension in settings.space:
                    say(f"  {dimension.path}: {dimension.kind} {list(dimension.values)}")
            if workers is not None:
                workers.begin()
            set_up_process(_threads(args))
            run_trials(study, settings, say)
            code = workers.wait() if workers is not None else 0
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


def _threads(args: argparse.Namespace) -> int | None:
    """Threads of each trial: as asked for, else the cores shared out among the jobs."""
    from recgrad.cores import available_cores

    asked: int | None = args.num_threads
    jobs: int = args.jobs
    if asked or jobs == 1:
        return asked
    return max(1, available_cores() // jobs)


class _Workers:
    """The other processes of a command with several jobs: the same command, sharing its study.

    They are started first, so that all import torch at the same time, and wait for `begin`.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        line = [sys.executable, "-m", "recgrad", "tune", config_path(args, "tune"), f"--{_WORKER}"]
        line += ["--num-threads", str(_threads(args))]
        for name in ("edit_config_json", "space", "trials", "metric", "out", "storage", "seed", "device"):
            value = getattr(args, name)
            if value not in (None, ""):
                line.append(f"--{name.replace('_', '-')}={value}")
        if args.no_custom_code:
            line.append("--no-custom-code")
        self._line, self._count = line, args.jobs - 1
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> _Workers:
        for _ in range(self._count):
            self._processes.append(subprocess.Popen(self._line, stdin=subprocess.PIPE, text=True))
        return self

    def begin(self) -> None:
        """Let them make trials."""
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # one that has failed already: `wait` tells its exit code
                process.stdin.write("begin\n")
                process.stdin.flush()

    def wait(self) -> int:
        """The largest exit code, when all have ended; what the report needs is imported meanwhile."""
        import optuna.importance  # noqa: F401  imports scikit-learn where that is installed

        import recgrad.experiments.tune_page  # noqa: F401

        return max(process.wait() for process in self._processes)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for process in self._processes:
            if error is not None and process.poll() is None:
                process.terminate()
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()


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
