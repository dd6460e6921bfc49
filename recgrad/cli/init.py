"""`recgrad init`: from a table to a config that trains."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from recgrad.cli.command import COMMANDS, Command
from recgrad.cli.console import table_console
from recgrad.errors import RecgradError, system_reason
from recgrad.terminal import printable, say

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from recgrad.histories import HistorySettings
    from recgrad.histories.write import HistoryReport
    from recgrad.starting import Beginning
    from recgrad.starting.roles import Choice


@COMMANDS.register("init")
class Init(Command):
    """Look at a table and write a config that trains on it: `recgrad init log.parquet --out DIR`.

    Reads all rows once and decides on every column: label, outcomes of the same row (which would give the
    label away, and are left out), user, item, time, categories, numbers, lists. Splits by time where there
    is one, else at random, without copying rows. Prints what it found and chose, and writes
    DIR/pipeline.config with a reason beside each line.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.add_argument("data", metavar="DATA", nargs="+", help="parquet or text files, globs, folders")
        parser.add_argument("--out", required=True, metavar="DIR", help="folder to write into")
        parser.add_argument(
            "--label",
            metavar="COLUMNS",
            help="what to learn: two values, classes (0, 1 … or texts), or a number; a,b for several tasks",
        )
        parser.add_argument("--time", default="", metavar="COLUMN", help="the time of a row")
        parser.add_argument("--user", default="", metavar="COLUMN", help="who a row is about")
        parser.add_argument("--item", default="", metavar="COLUMN", help="what was shown")
        parser.add_argument(
            "--items",
            default="",
            metavar="FILE",
            help="attributes of items, a row each, by the column of items (--task retrieval)",
        )
        parser.add_argument(
            "--task",
            choices=["ctr", "multi-task", "retrieval", "sequence"],
            help="one label, several labels, two towers that find items, or what comes next of a user "
            "(default: by --label)",
        )
        parser.add_argument(
            "--eval", default="", metavar="DATA", help="rows to evaluate on, instead of a split"
        )
        parser.add_argument("--split", choices=["time", "users", "random"], default="", help="how to split")
        parser.add_argument(
            "--eval-share",
            type=float,
            default=0.1,
            metavar="SHARE",
            help="of the rows (default: %(default)s)",
        )
        parser.add_argument(
            "--keep", default="", metavar="COLUMNS", help="learn from these although they seem to be outcomes"
        )
        parser.add_argument("--ignore", default="", metavar="COLUMNS", help="leave these out")
        parser.add_argument(
            "--names",
            default="",
            metavar="NAMES",
            help="of the columns of text without a header: a,b,c or a file",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Look, decide, write."""
        try:
            if args.task in ("retrieval", "sequence"):
                return _events(args)
            if args.items:
                raise RecgradError("init: --items goes with --task retrieval alone; join it to the rows")
            return _table(args)
        except OSError as error:
            raise RecgradError(f"init: {error.filename or args.out}: {system_reason(error)}") from error


def _table(args: argparse.Namespace) -> int:
    from recgrad.starting import InitSettings, begin
    from recgrad.starting.roles import Asked

    labels = tuple(_list(args.label))
    if args.task == "multi-task" and len(labels) < 2:
        raise RecgradError(f"init: --task multi-task needs several labels, --label a,b; got {len(labels)}")
    if args.task == "ctr" and len(labels) > 1:
        raise RecgradError(f"init: --task ctr learns one label, got {len(labels)}; leave --task out")
    asked = Asked(
        labels, args.time, args.user, args.item, frozenset(_list(args.keep)), frozenset(_list(args.ignore))
    )
    settings = InitSettings(
        ",".join(args.data), args.out, args.eval, asked, _names(args.names), args.split, args.eval_share
    )
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    found = begin(settings, _ask if asks else None)
    _print(found)
    say(f"wrote {found.config}; train with: recgrad train {found.config}")
    return 0


def _events(args: argparse.Namespace) -> int:
    """What users do, as histories, each user's last events held back: for towers, or for what comes next."""
    from recgrad.histories import HistorySettings, write_histories
    from recgrad.histories.config import write_configs
    from recgrad.starting.roles import event_columns
    from recgrad.starting.source import open_source

    towers = args.task == "retrieval"
    for flag in ("eval", "split", "keep", "ignore", "names", *(() if towers else ("label", "items"))):
        if getattr(args, flag):
            raise RecgradError(
                f"init: --{flag} does not go with --task {args.task}; see `recgrad sequences --help`"
            )
    path = ",".join(args.data)
    reader, _ = open_source(path)
    user, item, time = event_columns(reader.schema, args.user, args.item, args.time)
    if towers:
        path = _positive(path, reader.schema, args.label)
        # Towers see a mean of few events; each event of a user is a row to learn.
        settings = HistorySettings(user=user, item=item, time=time, max_length=50, stride=1)
        report, configs = _towers(args, path, settings)
    else:
        settings = HistorySettings(user=user, item=item, time=time)
        report = write_histories(path, args.out, settings)
        configs = write_configs(args.out, settings, report)
    say(f"users: {user}, items: {item}, times: {time or 'none, rows are in order'}")
    if towers:
        kept = f"events where {args.label} is 1" if args.label else "all events (--label keeps those of 1)"
        say(f"learned: {kept}; {report.items:,} items, {report.users:,} users")
    say("each user's last event tests, the one before it validates")
    for name, rows in report.rows.items():
        say(f"  {name + '.parquet':<14} {rows:>12,} rows")
    say(f"wrote {' and '.join(map(str, configs))}; train with: recgrad train {configs[0]}")
    return 0


def _towers(
    args: argparse.Namespace, path: str, settings: HistorySettings
) -> tuple[HistoryReport, list[Path]]:
    """Write the rows of two towers, and their config."""
    from pathlib import Path

    from recgrad.histories import write_histories
    from recgrad.histories.items import ID, WEIGHT
    from recgrad.histories.retrieval_config import ItemFeatures, write_retrieval_config
    from recgrad.starting.attributes import find_attributes

    if (Path(args.out) / "pipeline.config").exists():
        raise RecgradError(f"init: {args.out}/pipeline.config exists; remove it or choose another --out")
    report = write_histories(path, args.out, settings, items_path=args.items, beside_rows=bool(args.items))
    features = ItemFeatures()
    if args.items:
        # Of the items of the log alone, with nulls for those that the table has not.
        found = find_attributes(f"{args.out}/items.parquet", {ID, WEIGHT, settings.item})
        _print_choices(found.choices)
        if not found.names:
            raise RecgradError(f"init: --items {args.items}: no column is left to learn from; leave it out")
        features = ItemFeatures(found.columns, found.names, found.lines)
    return report, [write_retrieval_config(args.out, settings, report, features)]


def _positive(path: str, schema: Any, label: str | None) -> str:
    """The events that are learned: those whose label is 1."""
    import pyarrow as pa

    from recgrad.data.readers.where_text import split_where
    from recgrad.errors import nearest

    if not label:
        return path
    if label not in schema.names:
        raise RecgradError(f"init: there is no column '{label}'{nearest(label, schema.names)}")
    kind = schema.field(label).type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise RecgradError(f"init: --label {label} is {kind}; for retrieval it is 1 where an event is wanted")
    files, already = split_where(path)
    both = f"({already}) and " if already else ""
    return f"{files} where {both}`{label}` = 1"


def _list(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _names(text: str) -> list[str]:
    import os

    if text and os.path.isfile(text):
        with open(text, encoding="utf-8") as file:
            text = file.read().replace("\n", ",")
    return _list(text)


def _ask(candidates: list[str]) -> str:
    """The label, from the one at the terminal."""
    say("Which column shall be learned?")
    for number, name in enumerate(candidates, 1):
        say(f"  {number}  {name}")
    while True:
        answer = input("number or name: ").strip()
        if answer in candidates:
            return answer
        if answer.isdigit() and 1 <= int(answer) <= len(candidates):
            return candidates[int(answer) - 1]


def _print(found: Beginning) -> None:
    _print_choices(found.roles.choices)
    say(f"{found.profile.num_rows:,} rows; split {found.split.reason}")


def _print_choices(choices: Sequence[Choice]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head, justify in (("column", "left"), ("type", "left"), ("values", "right"), ("null", "right")):
        table.add_column(head, justify=justify)  # type: ignore[arg-type]
    table.add_column("chosen")
    table.add_column("why")
    for choice in choices:
        column = choice.column
        nulls = f"{column.nulls / max(column.rows, 1):.1%}" if column.nulls else ""
        role = (
            choice.role
            if choice.role in ("label", "outcome", "ignored", "time")
            else f"{choice.side} {choice.role}"
        )
        cells = [choice.name, str(column.kind), f"{column.distinct:,}", nulls, role, choice.reason]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    table_console().print(table)
