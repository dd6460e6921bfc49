"""`recgrad codes`: what semantic ids are worth, and tables of them for other models."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.errors import RecgradError
from recgrad.terminal import say

if TYPE_CHECKING:
    from recgrad.retrieval.codes import CodeReport


@COMMANDS.register("codes")
class CodesOfItems(Command):
    """Report collisions, use of codebooks and entropy of semantic ids, and write them as features.

    FILE is what `recgrad predict` wrote of a model of semantic ids: an item a row, and its `codes`. The table
    that --out writes has `code_1`, `code_2` and so on for id features, `sid` as text, and `tokens`, codes of
    which no two levels share one. --rows adds the same columns to a table of rows by their items.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="predictions, parquet")
        parser.add_argument("--item", default="item_id", metavar="COLUMN", help="(default: %(default)s)")
        parser.add_argument(
            "--codebook",
            default="",
            metavar="SIZES",
            help="the model's, as 256,256,256; else the largest codes",
        )
        parser.add_argument(
            "--max-items-per-id",
            type=int,
            default=0,
            metavar="N",
            help="move further items of an id to their candidate_codes (0: leave collisions)",
        )
        parser.add_argument("--out", metavar="FILE", help="write the ids of items (.parquet)")
        parser.add_argument("--rows", metavar="FILE", help="rows to add codes to, parquet")
        parser.add_argument("--rows-item", metavar="COLUMN", help="their column of items (default: --item)")
        parser.add_argument("--rows-out", metavar="FILE", help="where to write them (.parquet)")
        parser.add_argument("--json", action="store_true", help="print the report as JSON")

    def run(self, args: argparse.Namespace) -> int:
        with heavy_imports():
            from recgrad.export.codes import add_codes, read_codes, write_table
        if bool(args.rows) != bool(args.rows_out):
            raise RecgradError("codes: --rows and --rows-out need each other")
        if args.max_items_per_id < 0:
            raise RecgradError(f"codes: --max-items-per-id must be at least 0, got {args.max_items_per_id}")
        found = read_codes(
            args.file,
            item_field=args.item,
            codebook=_sizes(args.codebook),
            most=args.max_items_per_id,
        )
        report = found.report()
        say(json.dumps(asdict(report)) if args.json else describe(report))
        if found.left:
            say(f"{found.left:,} items found no candidate with room; raise topk of candidate_output_config")
        if args.out:
            write_table(found.table(args.item), args.out)
            say(f"wrote the ids of {report.items:,} items to {args.out}")
        if args.rows:
            rows, missing = add_codes(args.rows, args.rows_item or args.item, found)
            write_table(rows, args.rows_out)
            lack = f", {missing:,} of items without codes" if missing else ""
            say(f"wrote {rows.num_rows:,} rows with codes to {args.rows_out}{lack}")
        return 0


def describe(report: CodeReport) -> str:
    """The report in lines."""
    lines = [
        f"{report.items:,} items, {report.ids:,} ids: no_collision_rate {report.no_collision_rate:.4f}",
        f"  {report.alone:,} items have an id of their own ({report.alone / report.items:.1%}); "
        f"the largest id has {report.largest:,} items; Gini {report.gini:.4f}",
        f"  entropy {report.entropy:.4f} nats, {report.entropy_ratio:.4f} of what the codebooks allow",
    ]
    for number, level in enumerate(report.levels, 1):
        dead = level.codes - level.used
        lines.append(
            f"  level {number}: {level.used:,} of {level.codes:,} codes used ({level.coverage:.1%}), "
            f"{dead:,} dead, perplexity {level.perplexity:.1f}"
        )
    return "\n".join(lines)


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise RecgradError(f"codes: --codebook must be sizes such as 256,256,256, got '{text}'")
    return tuple(map(int, parts))
