"""What comes next: SASRec on histories from a log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from recgrad.examples.example import EXAMPLES, Example, Step, command
from recgrad.synth import Shop
from recgrad.synth.shop import NUM_ITEMS

EDITS = '{"train_config.num_epochs": 12}'
"""Few epochs, for few users."""


@EXAMPLES.register("sequence")
class Sequence(Example):
    """What comes next: histories from a log, and SASRec on them."""

    def write(self, folder: Path, shop: Shop) -> str:
        clicks = shop.log.filter(pa.compute.equal(shop.log["click"], 1)).select(
            ["user_id", "item_id", "time"]
        )
        # The first click of a user on an item: what is evaluated is what she has not seen.
        pairs = clicks["user_id"].to_numpy() * NUM_ITEMS + clicks["item_id"].to_numpy()
        clicks = clicks.take(np.sort(np.unique(pairs, return_index=True)[1]))
        pa.parquet.write_table(clicks, folder / "clicks.parquet")
        return f"{folder}/clicks.parquet: {clicks.num_rows:,} clicks, a user, an item and a time each"

    def steps(self, folder: Path) -> list[Step]:
        return [
            command(f"sequences {folder}/clicks.parquet --time time --out {folder}/histories"),
            command(f"train {folder}/histories/sasrec.config --edit_config_json '{EDITS}'"),
            command(f"eval {folder}/histories/sasrec --eval_input_path {folder}/histories/test.parquet"),
        ]

    def more(self, folder: Path) -> list[str]:
        return [
            f"recgrad index {folder}/histories/sasrec --items {folder}/histories/items.parquet "
            f"--out {folder}/index",
            f"recgrad recommend {folder}/histories/sasrec --index {folder}/index "
            f"--users {folder}/histories/test.parquet --output {folder}/next.csv",
            "less docs/sequences.md   # hstu, BERT4Rec's training, sampled losses",
        ]
