"""`recgrad compare`: tell whether one model's predictions are better than another's."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from recgrad.cli.command import COMMANDS, Command
from recgrad.cli.run_flags import add_threads_argument
from recgrad.errors import RecgradError, nearest, system_reason, whole_path
from recgrad.terminal import say

if TYPE_CHECKING:
    import pyarrow as pa


@COMMANDS.register("compare")
class Compare(Command):
    """Compare the predictions of two models for the same rows, or two sets of runs.

    Prints AUC, grouped AUC (with --group) and log loss of both, the interval of each
    difference and a verdict, and draws them. The files are those of `recgrad predict`, with
    the label (and the group) carried along, in the same order of rows; name a column of
    unique values with --on when the orders differ.

    Where both are folders they are sets of runs, as `recgrad repeat` makes them: the difference of every
    metric with its interval, by pairs where both sets have the same seeds, and whether it is one.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.add_argument(
            "pred_a", metavar="PRED_A", help="predictions of model A, parquet or csv, or a folder"
        )
        parser.add_argument("pred_b", metavar="PRED_B", help="of model B")
        parser.add_argument(
            "--label", metavar="COLUMN", help="column of the labels, 0 or 1; needed for predictions"
        )
        parser.add_argument("--group", metavar="COLUMN", help="column of the groups, such as the user's id")
        parser.add_argument(
            "--score",
            metavar="COLUMN",
            help="column of the predictions (default: probs, or the only probs_…)",
        )
        parser.add_argument("--score-a", metavar="COLUMN", help="the same, for A alone")
        parser.add_argument("--score-b", metavar="COLUMN", help="the same, for B alone")
        parser.add_argument("--on", metavar="COLUMN", help="column that tells which rows belong together")
        parser.add_argument(
            "--weighting",
            choices=["NONE", "IMPRESSIONS", "POSITIVES"],
            default="NONE",
            help="weight of a group in grouped AUC (default: %(default)s)",
        )
        parser.add_argument(
            "--confidence", type=float, default=0.95, help="of the intervals (default: %(default)s)"
        )
        parser.add_argument(
            "--resamples", type=int, default=1000, help="draws of the bootstrap (default: %(default)s)"
        )
        parser.add_argument("--seed", type=int, default=0, help="of the draws (default: %(default)s)")
        parser.add_argument("--plot", metavar="FILE.png", help="draw the intervals and the calibration")
        parser.add_argument("--json", metavar="FILE", help="write the numbers")
        add_threads_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Compare and print."""
        import json
        from pathlib import Path

        if Path(args.pred_a).is_dir() and Path(args.pred_b).is_dir():
            return _compare_sets(args)
        if args.label is None:
            raise RecgradError("compare: --label: name the column of the labels; folders of runs need none")

        from recgrad.report.comparison import compare
        from recgrad.training.runtime import set_up_process

        set_up_process(args.num_threads)
        tables = [_load(path) for path in (args.pred_a, args.pred_b)]
        if args.on:
            tables = [
                _sorted(table, path, args.on) for table, path in zip(tables, (args.pred_a, args.pred_b))
            ]
        label, group = (_shared(tables, args, name) for name in (args.label, args.group))
        scores = [
            _scores(table, path, chosen or args.score)
            for table, path, chosen in zip(tables, (args.pred_a, args.pred_b), (args.score_a, args.score_b))
        ]
        try:
            comparison = compare(
                label,
                scores[0],
                scores[1],
                group,
                weighting=args.weighting,
                confidence=args.confidence,
                num_resamples=args.resamples,
                seed=args.seed,
            )
        except ValueError as error:
            raise RecgradError(f"compare: {error}") from error
        say(f"A: {args.pred_a}\nB: {args.pred_b}")
        say(comparison)
        if args.plot:
            comparison.plot(args.plot)
        if args.json:
            Path(args.json).write_text(json.dumps(comparison.to_dict(), indent=2) + "\n")
        return 0


def _compare_sets(args: argparse.Namespace) -> int:
    """Two folders of runs: the difference of every metric."""
    import json
    from dataclasses import asdict
    from pathlib import Path

    from rich.table import Table

    from recgrad.cli.console import table_console
    from recgrad.cli.repeat import check_confidence
    from recgrad.experiments.runs import find_runs
    from recgrad.experiments.sets import compare_sets

    for flag in ("label", "group", "score", "score_a", "score_b", "on", "plot"):
        if getattr(args, flag):
            name = flag.replace("_", "-")
            raise RecgradError(f"compare: --{name} is for predictions; {args.pred_a} is a folder of runs")
    check_confidence(args.confidence)
    sets = [[run for run in find_runs(path) if run.metrics] for path in (args.pred_a, args.pred_b)]
    found = compare_sets(sets[0], sets[1], args.confidence)
    say(f"A: {args.pred_a} ({len(sets[0])} runs)\nB: {args.pred_b} ({len(sets[1])} runs)")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("metric")
    for head in ("A", "B", "B - A", f"{args.confidence:.0%} interval", "p"):
        table.add_column(head, justify="right")
    table.add_column("")
    for name, gap in found.items():
        verdict = "they differ" if gap.differs else "no difference is shown"
        span = f"{gap.low:+.6f} to {gap.high:+.6f}"
        cells = (f"{gap.a:.6f}", f"{gap.b:.6f}", f"{gap.difference:+.6f}", span, f"{gap.p_value:.3f}")
        table.add_row(name, *cells, verdict)
    table_console().print(table)
    method = next(iter(found.values())).method
    say(f"{method}: {'runs of the same seed are compared' if method == 'paired t' else 'the seeds differ'}")
    if args.json:
        Path(args.json).write_text(json.dumps({k: asdict(v) for k, v in found.items()}, indent=2) + "\n")
    return 0


def _load(path: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    try:
        return pa.csv.read_csv(path) if path.endswith(".csv") else pa.parquet.read_table(path)
    except FileNotFoundError as error:
        raise RecgradError(
            f"{path}: there is no such file{whole_path(path)}; "
            "give the predictions that `recgrad predict` wrote"
        ) from error
    except (PermissionError, NotADirectoryError, IsADirectoryError) as error:
        raise RecgradError(f"{path}: cannot be read: {system_reason(error)}") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise RecgradError(f"{path}{whole_path(path)}: cannot be read as predictions ({error})") from error


def _sorted(table: pa.Table, path: str, on: str) -> pa.Table:
    column = _column(table, path, on)
    if column.null_count or len(column.unique()) != len(column):
        raise RecgradError(
            f"{path}: --on {on} must tell rows apart, but has values that repeat or are missing"
        )
    return table.sort_by(on)


def _shared(tables: list[pa.Table], args: argparse.Namespace, name: str | None) -> Any:
    """A column that is the same for both models; from A, compared with B's where B has it."""
    import numpy as np

    if name is None:
        return None
    rows = [table.num_rows for table in tables]
    if rows[0] != rows[1]:
        raise RecgradError(f"{args.pred_b}: has {rows[1]} rows, but {args.pred_a} has {rows[0]}")
    values = _numpy(_column(tables[0], args.pred_a, name), args.pred_a, name)
    for column in {name, args.on or name}:
        if column not in tables[1].column_names:
            continue
        ours = _numpy(_column(tables[0], args.pred_a, column), args.pred_a, column)
        theirs = _numpy(tables[1].column(column), args.pred_b, column)
        if not np.array_equal(ours, theirs):
            row = int(np.flatnonzero(ours != theirs)[0])
            raise RecgradError(
                f"{args.pred_b}: column '{column}' differs from {args.pred_a} at row {row} "
                f"({theirs[row]} and {ours[row]}): the rows are not the same, or not in the same order; "
                "name a column of unique values with --on"
            )
    return values


def _numpy(column: pa.ChunkedArray, path: str, name: str) -> Any:
    if column.null_count:
        raise RecgradError(f"{path}: column '{name}' has {column.null_count} missing values")
    return column.to_numpy()


def _scores(table: pa.Table, path: str, name: str | None) -> Any:
    import numpy as np

    if name is None:
        known = [column for column in table.column_names if column == "probs" or column.startswith("probs_")]
        if "probs" not in known and len(known) != 1:
            raise RecgradError(
                f"{path}: which column holds the predictions? Name it with --score "
                f"(has: {', '.join(table.column_names)})"
            )
        name = "probs" if "probs" in known else known[0]
    column = _column(table, path, name)
    if str(column.type).startswith("fixed_size_list"):
        width = column.type.list_size
        if width != 2:
            raise RecgradError(f"{path}: column '{name}' has {width} classes; compare is for binary tasks")
        return np.stack(column.to_numpy())[:, 1]
    return _numpy(column, path, name)


def _column(table: pa.Table, path: str, name: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise RecgradError(
            f"{path}: has no column '{name}'{nearest(name, table.column_names)} "
            f"(has: {', '.join(table.column_names)}); carry it along when predicting"
        )
    return table.column(name)
