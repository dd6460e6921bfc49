"""`recgrad runs`: a table of runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from recgrad.cli.command import COMMANDS, Command
from recgrad.cli.console import table_console
from recgrad.errors import RecgradError, nearest
from recgrad.terminal import printable, say

if TYPE_CHECKING:
    from recgrad.experiments.runs import Run

MOST_SHOWN = 6


@COMMANDS.register("runs")
class Runs(Command):
    """List the runs below a folder: metrics, steps, time, data, and in what their configs differ.

    Metrics are those of the best evaluation where a run says which that is, else of the last. --where takes a
    condition on the columns, such as 'auc > 0.7 and seed = 1'; names with dots stand in backquotes.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "folders", metavar="DIR", nargs="+", help="folders with runs in them, at any depth"
        )
        parser.add_argument("--sort", metavar="COLUMN", help="best or largest first")
        parser.add_argument("--reverse", action="store_true", help="worst or least first")
        parser.add_argument("--where", metavar="CONDITION", help="show the runs of which it holds")
        parser.add_argument("--all", action="store_true", help="show every difference of the configs")
        parser.add_argument("--json", metavar="FILE", help="write the table")

    def run(self, args: argparse.Namespace) -> int:
        import json
        from pathlib import Path

        from recgrad.experiments.runs import find_runs

        runs = [run for folder in args.folders for run in find_runs(folder)]
        rows, fields = _rows(runs)
        rows = _filtered(rows, args.where)
        rows = _sorted(rows, args.sort, args.reverse)
        if args.json:
            Path(args.json).write_text(json.dumps(rows, indent=2, default=str) + "\n", encoding="utf-8")
        shown = fields if args.all else fields[:MOST_SHOWN]
        hidden = set(fields) - set(shown)
        _print([{name: value for name, value in row.items() if name not in hidden} for row in rows])
        if hidden:
            say(f"{len(hidden)} further differences of the configs; --all shows them")
        return 0


def _rows(runs: list[Run]) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each run, and the columns that come from differences of the configs."""
    from datetime import datetime, timezone

    from recgrad.experiments.runs import differing

    differences = differing(runs)
    names = {field: _short(field, differences) for field in differences}
    metrics = list(dict.fromkeys(name for run in runs for name in run.best))
    rows = []
    for number, run in enumerate(runs):
        begun = (
            datetime.fromtimestamp(run.begun, timezone.utc).strftime("%Y-%m-%d %H:%M") if run.begun else ""
        )
        row: dict[str, Any] = {"run": str(run.folder)}
        row |= {name: run.best.get(name) for name in metrics}
        row |= {"steps": run.steps, "seconds": round(run.seconds, 1), "rows": run.rows}
        row |= {"begun": begun, "state": run.state}
        row |= {names[field]: values[number] for field, values in differences.items()}
        rows.append(row)
    return rows, list(names.values())


def _short(field: str, fields: Any) -> str:
    """The last part of a path where no other field ends so, else the whole path."""
    last = field.rpartition(".")[2]
    alike = [other for other in fields if other.rpartition(".")[2] == last]
    taken = ("run", "steps", "seconds", "rows", "begun", "state")
    return last if len(alike) == 1 and last not in taken else field


def _known(rows: list[dict[str, Any]], name: str) -> str:
    names = list(rows[0]) if rows else []
    if name not in names:
        raise RecgradError(
            f"recgrad runs: there is no column '{name}'{nearest(name, names)} (has: {', '.join(names)})"
        )
    return name


def _sorted(rows: list[dict[str, Any]], wanted: str | None, turned: bool) -> list[dict[str, Any]]:
    if turned and not wanted:
        raise RecgradError("recgrad runs: --reverse goes with --sort; name a column to sort by")
    if not wanted or not rows:
        return rows
    name = _known(rows, wanted)
    down = not _smaller_is_better(name)
    known = [row for row in rows if row[name] is not None]
    texts = any(not isinstance(row[name], (int, float)) for row in known)
    known.sort(key=lambda row: str(row[name]) if texts else row[name], reverse=(down and not texts) != turned)
    return known + [row for row in rows if row[name] is None]


def _smaller_is_better(name: str) -> bool:
    from recgrad.metrics import METRICS

    kind = next((METRICS[known] for known in METRICS if name == known or name.startswith(f"{known}_")), None)
    return getattr(kind, "higher_is_better", None) is False


def _filtered(rows: list[dict[str, Any]], condition: str | None) -> list[dict[str, Any]]:
    if not condition:
        return rows
    import numpy as np
    import pyarrow as pa

    from recgrad.data.readers.where import Rows
    from recgrad.data.readers.where_text import parse_where

    parsed = parse_where(condition)
    columns = {}
    for name in dict.fromkeys(parsed.columns()):
        values = [row[_known(rows, name)] for row in rows]
        plain = all(value is None or isinstance(value, (int, float)) for value in values)
        columns[name] = pa.array(values if plain else [None if v is None else str(v) for v in values])
    parsed.check(pa.schema([(name, column.type) for name, column in columns.items()]))
    kept = parsed.mask(Rows(columns, np.arange(len(rows)))).to_pylist()
    return [row for row, keep in zip(rows, kept, strict=True) if keep]


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    if not rows:
        say("no run fulfils the condition")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in rows[0]:
        numeric = all(row[name] is None or isinstance(row[name], (int, float)) for row in rows)
        table.add_column(Text(printable(name)), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(_cell(value))) for value in row.values()))
    table_console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
