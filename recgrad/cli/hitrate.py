"""`recgrad hitrate`: how many of the items to find are among the nearest, from files of vectors."""

from __future__ import annotations

import argparse
from pathlib import Path

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.errors import RecgradError
from recgrad.terminal import say


@COMMANDS.register("hitrate")
class HitRateOfFiles(Command):
    """Compute the hit rate as TorchEasyRec's tool does, by exact search over all items.

    It is the number of wanted items among the nearest --top_k of the rows, over the number of wanted items.
    Nothing is masked. Files are parquet, or text with a header line; vectors are lists or numbers joined by
    commas, several interests lists of lists or text joined by semicolons.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--user-gt-input", required=True, metavar="PATH", help="request_id, gt_items, user_tower_emb"
        )
        parser.add_argument(
            "--item-embedding-input", required=True, metavar="PATH", help="item_id, item_tower_emb: all items"
        )
        parser.add_argument("--total-hitrate-output", metavar="FILE", help="write the hit rate")
        parser.add_argument(
            "--hitrate-details-output", metavar="FILE", help="write the lists of rows (.parquet)"
        )
        parser.add_argument("--top-k", type=int, default=200, help="items of a list (default: %(default)s)")
        parser.add_argument("--metric", choices=("ip", "l2"), default="ip", help="how vectors are compared")
        parser.add_argument(
            "--topk-across-interests", action="store_true", help="the best k of all interests together"
        )
        for flag, name in _COLUMNS.items():
            parser.add_argument(flag, metavar="NAME", default=name, help="column (default: %(default)s)")

    def run(self, args: argparse.Namespace) -> int:
        with heavy_imports():
            from recgrad.export.hitrate import Columns, hitrate
        if args.top_k < 1:
            raise RecgradError(f"hitrate: --top-k must be at least 1, got {args.top_k}")
        if args.hitrate_details_output and not args.hitrate_details_output.endswith(".parquet"):
            raise RecgradError(f"hitrate: '{args.hitrate_details_output}' must end with .parquet")
        found = hitrate(
            args.user_gt_input,
            args.item_embedding_input,
            k=args.top_k,
            euclid=args.metric == "l2",
            across=args.topk_across_interests,
            columns=Columns(
                args.request_id_field,
                args.gt_items_field,
                args.user_embedding_field,
                args.item_id_field,
                args.item_embedding_field,
            ),
            details_path=args.hitrate_details_output,
        )
        counts = f"{found.hits:,} of {found.wanted:,} items, {found.rows:,} rows"
        say(f"hitrate@{args.top_k}: {found.value:.6f} ({counts})")
        if found.skipped:
            say(f"{found.skipped:,} rows without an item to find left out")
        if found.missing:
            say(f"{found.missing:,} items to find are not in the catalogue and count as misses")
        if args.total_hitrate_output:
            Path(args.total_hitrate_output).write_text(f"{found.value}\n")
        return 0


_COLUMNS = {
    "--request-id-field": "request_id",
    "--gt-items-field": "gt_items",
    "--user-embedding-field": "user_tower_emb",
    "--item-id-field": "item_id",
    "--item-embedding-field": "item_tower_emb",
}
