"""`recgrad tdm-tree`: a tree over items, for tdm models."""

from __future__ import annotations

import argparse
from typing import Any

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.errors import RecgradError
from recgrad.terminal import say


@COMMANDS.register("tdm-tree")
class TdmTree(Command):
    """Build the tree of items that tdm_sampler and `recommend --kind tdm` read.

    With --cate-id-field items of a category are neighbours in the tree, as in TorchEasyRec's init_tree; with
    --embedding-field items with near vectors are, as in its cluster_tree. Inner nodes have the commonest
    value of --attr-fields below them and the mean of --raw-attr-fields. Written are node_table.txt,
    edge_table.txt, predict_edge_table.txt, serving_tree and node_feature.parquet.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--item-input-path", required=True, metavar="PATH", help="files with every item once"
        )
        parser.add_argument("--tree-output-dir", required=True, metavar="DIR", help="the folder to write to")
        parser.add_argument(
            "--item-id-field", default="item_id", metavar="NAME", help="column of ids (default: %(default)s)"
        )
        parser.add_argument(
            "--cate-id-field", metavar="NAME", help="column of categories: a tree by category"
        )
        parser.add_argument("--embedding-field", metavar="NAME", help="column of vectors: a tree by vectors")
        parser.add_argument(
            "--attr-fields", default="", metavar="A,B", help="columns that nodes have as attributes"
        )
        parser.add_argument(
            "--raw-attr-fields",
            default="",
            metavar="A,B",
            help="columns of numbers that nodes have as attributes",
        )
        parser.add_argument(
            "--attr-delimiter", default=",", metavar="TEXT", help="between attributes (default: %(default)s)"
        )
        parser.add_argument(
            "--n-cluster", type=int, default=2, metavar="N", help="children of a node (default: %(default)s)"
        )

    def run(self, args: argparse.Namespace) -> int:
        if bool(args.cate_id_field) == bool(args.embedding_field):
            raise RecgradError("tdm-tree: give --cate-id-field or --embedding-field, one of the two")
        if args.n_cluster < 2:
            raise RecgradError(f"tdm-tree: --n-cluster must be at least 2, got {args.n_cluster}")
        if not args.attr_delimiter:
            raise RecgradError("tdm-tree: --attr-delimiter must not be empty")
        with heavy_imports():
            from recgrad.export.tree_files import write_tree
        attributes, raw = _names(args.attr_fields), _names(args.raw_attr_fields)
        twice = sorted({*attributes} & {*raw} | {*attributes, *raw} & {args.item_id_field, "tree_level"})
        if twice:
            raise RecgradError(f"tdm-tree: column '{twice[0]}' is an attribute already; name it once")
        table = _items(args, [*attributes, *raw])
        tree = _tree(args, table)
        nodes = write_tree(
            args.tree_output_dir,
            tree,
            table,
            id_field=args.item_id_field,
            attr_fields=attributes,
            raw_attr_fields=raw,
            delimiter=args.attr_delimiter,
        )
        sizes = ", ".join(f"{len(level.codes):,}" for level in tree.levels)
        say(f"{nodes:,} nodes of {len(tree.levels)} levels ({sizes}) in {args.tree_output_dir}")
        return 0


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _items(args: argparse.Namespace, attributes: list[str]) -> Any:
    import pyarrow as pa

    from recgrad.data.readers.tables import open_table, read_table

    names = [args.item_id_field, args.cate_id_field or args.embedding_field, *attributes]
    return pa.concat_tables(list(read_table(open_table(args.item_input_path), list(dict.fromkeys(names)))))


def _tree(args: argparse.Namespace, table: Any) -> Any:
    import numpy as np

    from recgrad.export.tree_files import item_ids
    from recgrad.export.vector_files import vectors_of
    from recgrad.retrieval.item_tree import tree_by_order, tree_by_vectors

    ids = item_ids(table, args.item_id_field, args.item_input_path)
    if args.embedding_field:
        where = f"{args.item_input_path}: column '{args.embedding_field}'"
        vectors = vectors_of(table.column(args.embedding_field), where)
        if not np.isfinite(vectors).all():
            raise RecgradError(f"{where}: some numbers are not finite")
        return tree_by_vectors(vectors, args.n_cluster)
    order = table.append_column("__row__", [np.arange(len(ids))]).sort_by(
        [(args.cate_id_field, "ascending"), (args.item_id_field, "ascending")]
    )
    return tree_by_order(order.column("__row__").to_numpy(), args.n_cluster)
