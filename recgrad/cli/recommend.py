"""`recgrad recommend`: the best items of an index for every user of some files."""

from __future__ import annotations

import argparse

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.cli.model_flags import add_model_arguments, open_index, open_model, open_tree_model
from recgrad.errors import RecgradError
from recgrad.terminal import say


@COMMANDS.register("recommend")
class Recommend(Command):
    """Write the best k items of every user, in the order of the users' files.

    Parquet files have a row for each user with the lists `items` and `scores`; .csv files a row for each
    user and item. --filter takes a condition on columns of items, such as "price < 20 and category in
    ('a', 'b')", and is exact: a list is shorter than k only where fewer items may be in it. With --kind tdm
    the index is a tree of `recgrad tdm-tree`, which a model that tdm_sampler has trained searches by a beam.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_model_arguments(parser)
        parser.add_argument(
            "--index",
            required=True,
            metavar="INDEX",
            help="what `recgrad index` made with MODEL; a tree for tdm",
        )
        parser.add_argument(
            "--kind",
            choices=("vectors", "tdm"),
            default="vectors",
            help="nearest vectors, or a beam down a tree (default: %(default)s)",
        )
        parser.add_argument(
            "--beam", type=int, metavar="N", help="nodes kept of a level of a tree (default: 2·k)"
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
        if args.kind == "tdm":
            return _by_tree(args)
        if args.beam is not None:
            raise RecgradError("recommend: --beam goes with --kind tdm; leave it out")
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


def _by_tree(args: argparse.Namespace) -> int:
    """The best items that a beam down a tree reaches."""
    for flag, value in (("--filter", args.filter), ("--table", args.table)):
        if value is not None:
            raise RecgradError(f"recommend: {flag} does not go with --kind tdm; leave it out")
    if args.beam is not None and args.beam < args.k:
        raise RecgradError(f"recommend: --beam must be at least k, {args.k}, got {args.beam}")
    with heavy_imports():
        from recgrad.export.tree_search import recommend_by_tree
        from recgrad.serving.tree import load_tree
        from recgrad.serving.tree_search import TreeItems
    tree = load_tree(args.index)
    items = len(TreeItems(tree))
    if args.k > items:
        say(f"k is {args.k}, the tree has {items:,} items: lists are no longer than that", error=True)
    users = recommend_by_tree(
        open_tree_model(args, tree),
        tree,
        args.users,
        args.output,
        k=args.k,
        beam=args.beam or 0,
        user_field=args.user_id,
        history_path=args.exclude,
        item_field=args.item_id,
    )
    say(f"wrote the best {min(args.k, items):,} items of {users:,} users to {args.output}")
    return 0
