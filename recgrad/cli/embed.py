"""`recgrad embed`: vectors of one tower for files of rows."""

from __future__ import annotations

import argparse

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.cli.model_flags import add_model_arguments, open_model
from recgrad.terminal import say


@COMMANDS.register("embed")
class Embed(Command):
    """Write the vectors of one tower for rows that have that tower's columns, in their order.

    Vectors are a column `user_tower_emb` or `item_tower_emb` of lists beside the input's columns; in .csv
    files numbers joined by commas, those of several interests by semicolons.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_model_arguments(parser)
        parser.add_argument("--tower", required=True, metavar="NAME", help="user or item")
        parser.add_argument("--input", required=True, metavar="PATH", help="parquet or text files of rows")
        parser.add_argument(
            "--output", required=True, metavar="FILE", help="a .parquet or .csv file to write"
        )
        parser.add_argument("--columns", metavar="A,B", help="input columns to carry along (default: all)")

    def run(self, args: argparse.Namespace) -> int:
        with heavy_imports():
            from recgrad.export.towers import embed_file

            embedder = open_model(args)
        carry = (
            None
            if args.columns is None
            else [name.strip() for name in args.columns.split(",") if name.strip()]
        )
        rows = embed_file(embedder, args.tower, args.input, args.output, carry)
        say(f"wrote {rows:,} vectors to {args.output}")
        return 0
