"""`recgrad check`: every problem of a config at once."""

from __future__ import annotations

import argparse

from recgrad.cli.command import COMMANDS, EXIT_USER_ERROR, Command, heavy_imports
from recgrad.cli.run_flags import add_config_arguments, config_path
from recgrad.errors import RecgradError
from recgrad.terminal import say


@COMMANDS.register("check")
class Check(Command):
    """Check a config without training: every problem at once, one line each.

    Exit code 2 when there are problems, 0 otherwise. Hints are advice and do not fail.
    With --data, columns, types and a sample of the rows are checked as well. Classes that a run would
    import are listed; --no_custom_code refuses them.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config_arguments(parser)
        parser.add_argument("--data", action="store_true", help="look into the input files, too")
        parser.add_argument("--train-input-path", metavar="PATH", help="instead of the config's")
        parser.add_argument("--eval-input-path", metavar="PATH", help="instead of the config's")
        parser.add_argument(
            "--sample-rows",
            type=int,
            default=10_000,
            metavar="N",
            help="rows to look at (default: %(default)s)",
        )

    def run(self, args: argparse.Namespace) -> int:
        path = config_path(args, "check")
        if args.sample_rows < 1:
            raise RecgradError(f"recgrad check --sample_rows: must be at least 1, got {args.sample_rows}")
        from recgrad.config.effective import effective_config

        # What the file itself gets wrong is told before torch is imported, which takes the most time.
        config, locations = effective_config(
            path,
            args.edit_config_json,
            {"train_input_path": args.train_input_path, "eval_input_path": args.eval_input_path},
            custom_code=not args.no_custom_code,
        )
        with heavy_imports():
            from recgrad.training.preflight import check_effective

        report = check_effective(config, locations, sample_rows=args.sample_rows if args.data else 0)
        for found in report.class_paths:
            by = "imports" if found.imports else "loads from an installed package"
            say(f"custom code: {found.path} {by} {found.name}")
        for hint in report.hints:
            say(f"hint: {hint}")
        for problem in report.problems:
            say(problem, error=True)
        if report.problems:
            count = len(report.problems)
            say(f"{count} problem{'s' if count > 1 else ''} in {path}", error=True)
            return EXIT_USER_ERROR
        say(f"{path}: no problems found")
        return 0
