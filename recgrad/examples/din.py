"""Attention over what a user clicked before."""

from __future__ import annotations

from pathlib import Path

from recgrad.examples.example import EXAMPLES, Example, Step, command, write_config, write_log
from recgrad.synth import Shop
from recgrad.synth.shop import NUM_ITEMS


@EXAMPLES.register("din")
class Din(Example):
    """Clicks with a history: attention over what a user clicked before (DIN)."""

    def write(self, folder: Path, shop: Shop) -> str:
        write_log(folder, shop)
        split = shop.log["time"][int(shop.log.num_rows * 0.85)].as_py()
        users = max(shop.log["user_id"].to_pylist()) + 1
        write_config(folder, "din.config", split=split, users=users, items=NUM_ITEMS)
        return (
            f"{folder}/log.parquet, in which what a user clicked last says much of the next click (best AUC "
            f"{shop.best_auc:.3f}), and {folder}/din.config"
        )

    def steps(self, folder: Path) -> list[Step]:
        return [
            command(f"check {folder}/din.config --data"),
            command(f"train {folder}/din.config"),
            command(f"eval {folder}/model"),
        ]

    def more(self, folder: Path) -> list[str]:
        return [
            f"less {folder}/din.config   # a list column, and the group that compares it with the item",
            "recgrad example sequence   # what comes next, instead of whether this is clicked",
        ]
