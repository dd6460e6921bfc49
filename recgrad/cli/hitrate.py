"""`recgrad hitrate`: how many of the items to find are among the nearest, from files of vectors."""

from __future__ import annotations

import argparse
from pathlib import Path

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.errors import RecgradError
from recgrad.terminal import say


@COMMANDS.register("hitrate")
class HitRateOfFiles(Command):
    """Compute the hit rate as TorchEasyRec's tool does, by exact search over all items unless told otherwise.

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
        parser.add_argument("--metric", choices=("ip", "l2"), help="how vectors are compared (default: ip)")
        parser.add_argument(
            "--index-type", choices=tuple(_TYPES), help="search in lists of near items by faiss, not exactly"
        )
        parser.add_argument(
            "--ivf-nlist", type=int, metavar="N", help="lists of --index-type (default: 1000)"
        )
        parser.add_argument(
            "--ivf-nprobe", type=int, metavar="N", help="lists that a query looks into (default: 800)"
        )
        parser.add_argument(
            "--batch-size", type=int, default=1024, help="rows searched at a time (default: %(default)s)"
        )
        parser.add_argument(
            "--num-interests", type=int, metavar="N", help="interests that every row must have"
        )
        parser.add_argument(
            "--num-interests-field", metavar="NAME", default="", help="column of how many interests a row has"
        )
        parser.add_argument(
            "--topk-across-interests", action="store_true", help="the best k of all interests together"
        )
        for flag, name in _COLUMNS.items():
            parser.add_argument(flag, metavar="NAME", default=name, help="column (default: %(default)s)")

    def run(self, args: argparse.Namespace) -> int:
        with heavy_imports():
            from recgrad.export.hitrate import Columns, hitrate
            from recgrad.retrieval.approximate import Settings
        if args.top_k < 1:
            raise RecgradError(f"hitrate: --top-k must be at least 1, got {args.top_k}")
        if args.index_type and args.metric:
            raise RecgradError("hitrate: --metric and --index-type are both set; keep one")
        for flag in ("ivf_nlist", "ivf_nprobe", "batch_size", "num_interests"):
            value = getattr(args, flag)
            if value is not None and value < 1:
                raise RecgradError(f"hitrate: --{flag.replace('_', '-')} must be at least 1, got {value}")
            if flag.startswith("ivf") and value is not None and not args.index_type:
                raise RecgradError(
                    f"hitrate: --{flag.replace('_', '-')} goes with --index-type; leave it out"
                )
        lists = None
        if args.index_type:
            lists = Settings(nlist=args.ivf_nlist or 1000, nprobe=args.ivf_nprobe or 800)
        if args.hitrate_details_output and not args.hitrate_details_output.endswith(".parquet"):
            raise RecgradError(f"hitrate: '{args.hitrate_details_output}' must end with .parquet")
        found = hitrate(
            args.user_gt_input,
            args.item_embedding_input,
            k=args.top_k,
            euclid=_TYPES[args.index_type] if args.index_type else args.metric == "l2",
            across=args.topk_across_interests,
            columns=Columns(
                args.request_id_field,
                args.gt_items_field,
                args.user_embedding_field,
                args.item_id_field,
                args.item_embedding_field,
                args.num_interests_field,
            ),
            details_path=args.hitrate_details_output,
            lists=lists,
            interests=args.num_interests,
            batch_size=args.batch_size,
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


_TYPES = {"IVFFlatIP": False, "IVFFlatL2": True}
"""Kinds of index of TorchEasyRec's tool, and whether they compare by distance."""

_COLUMNS = {
    "--request-id-field": "request_id",
    "--gt-items-field": "gt_items",
    "--user-embedding-field": "user_tower_emb",
    "--item-id-field": "item_id",
    "--item-embedding-field": "item_tower_emb",
}
