"""`recgrad recommend`: the best items of an index for every user of some files."""

from __future__ import annotations

import argparse

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.cli.model_flags import add_model_arguments, open_index, open_model
from recgrad.terminal import say


@COMMANDS.register("recommend")
class Recommend(Command):
    """Write the best k items of every user, in the order of the users' files.

    Parquet files have a row for each user with the lists `items` and `scores`; .csv files a row for each
    user and item. --filter takes a condition on columns of items, such as "price < 20 and category in
    ('a', 'b')", and is exact: a list is shorter than k only where fewer items may be in it.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_model_arguments(parser)
        parser.add_argument(
            "--index", required=True, metavar="INDEX", help="what `recgrad index` made with MODEL"
        )
        parser.add_argument("--table", metavar="NAME", help="the table of an index in PostgreSQL")
        parser.add_argument(
            "--users", required=True, metavar="PATH", help="files with the user tower's columns"
        )
        parser.add_argument(
            "--output", required=True, metavar="FILE", help="a .parquet or .csv file to write"
        )
        parser.add_argument("--k", type=int, default=100, help="items of a user (default: %(default)s)")
        parser.add_argument(
            "--user-id", metavar="NAME", default="user_id", help="the column of users (default: %(default)s)"
        )
        parser.add_argument(
            "--exclude", metavar="PATH", help="files of users and the items that they have seen"
        )
        parser.add_argument(
            "--item-id", metavar="NAME", help="the column of items in --exclude (default: the index's)"
        )
        parser.add_argument("--filter", metavar="EXPR", help="which items may be recommended")

    def run(self, args: argparse.Namespace) -> int:
        with heavy_imports():
            from recgrad.export.recommend import recommend
        index = open_index(args.index, args.table)
        embedder = open_model(args)
        if args.k > len(index):
            say(
                f"k is {args.k}, the index has {len(index):,} items: lists are no longer than that",
                error=True,
            )
        users = recommend(
            embedder,
            index,
            args.users,
            args.output,
            k=args.k,
            user_field=args.user_id,
            condition=args.filter,
            history_path=args.exclude,
            item_field=args.item_id,
        )
        say(f"wrote the best {min(args.k, len(index)):,} items of {users:,} users to {args.output}")
        return 0
