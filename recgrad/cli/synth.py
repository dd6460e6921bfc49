"""`recgrad synth`: write synthetic click data with a known best AUC."""

from __future__ import annotations

import argparse

from recgrad.cli.command import COMMANDS, Command
from recgrad.errors import RecgradError, system_reason
from recgrad.terminal import say


@COMMANDS.register("synth")
class Synth(Command):
    """Write a synthetic click dataset whose best reachable AUC is known.

    The rows are shaped like Criteo's (13 numeric and 26 categorical columns, zipf ids, nulls)
    with a user id, a behaviour sequence and three labels, drawn from a seeded planted model.
    A config that trains on them is written beside them. The same seed gives the same bytes.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--rows", type=int, default=400_000, help="training rows (default: %(default)s)")
        parser.add_argument(
            "--eval-rows", type=int, help="evaluation rows (default: a tenth, at least 20000)"
        )
        parser.add_argument("--out", required=True, metavar="DIR", help="folder to write into")
        parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
        parser.add_argument(
            "--format", choices=["parquet", "csv"], default="parquet", help="(default: %(default)s)"
        )

    def run(self, args: argparse.Namespace) -> int:
        from recgrad.synth import write_synth

        try:
            report = write_synth(
                args.out, args.rows, eval_rows=args.eval_rows, seed=args.seed, file_format=args.format
            )
        except OSError as error:
            raise RecgradError(f"synth: {error.filename or args.out}: {system_reason(error)}") from error
        except ValueError as error:
            raise RecgradError(f"synth: {error}") from error
        say(f"wrote {report.rows:,} training and {report.eval_rows:,} evaluation rows to {args.out}")
        for name, auc in report.best_auc.items():
            say(f"  {name:<11} positive rate {report.positive_rate[name]:.3f}   best reachable AUC {auc:.4f}")
        say(f"train on them with: recgrad train {args.out}/deepfm.config")
        return 0
