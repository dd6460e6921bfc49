"""Candidates from a whole catalogue: two towers, an index, recommendations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from recgrad.examples.example import EXAMPLES, Example, Step, command, write_config
from recgrad.synth import Shop
from recgrad.synth.shop import NUM_ITEMS

SHARE = 0.8
"""Of a user's clicks, by time, that are learned from."""


@EXAMPLES.register("retrieval")
class Retrieval(Example):
    """Candidates from a whole catalogue: two towers, an index, recommendations."""

    def write(self, folder: Path, shop: Shop) -> str:
        parts = _split(shop)
        pa.parquet.write_table(shop.items, folder / "items.parquet")
        for name, table in parts.items():
            pa.parquet.write_table(table, folder / f"{name}.parquet")
        lines = [f"{item}\t1.0\t{item}" for item in range(NUM_ITEMS)]
        header = "id:int64\tweight:float\tattrs:string"
        (folder / "sampler.txt").write_text("\n".join([header, *lines, ""]))
        users = max(parts["users"]["user_id"].to_pylist()) + 1
        write_config(folder, "two_towers.config", users=users, items=NUM_ITEMS)
        return (
            f"{folder}: train.parquet and test.parquet, the earlier and the last clicks of {users:,} users; "
            f"items.parquet, {NUM_ITEMS} items with category and price; and two_towers.config"
        )

    def steps(self, folder: Path) -> list[Step]:
        return [
            command(f"train {folder}/two_towers.config"),
            command(f"index {folder}/model --items {folder}/items.parquet --out {folder}/index"),
            command(
                f"recommend {folder}/model --index {folder}/index --users {folder}/users.parquet "
                f"--exclude {folder}/train.parquet --k 5 --output {folder}/lists.csv"
            ),
        ]

    def more(self, folder: Path) -> list[str]:
        return [
            f"head {folder}/lists.csv   # the five best items of each user that she has not clicked",
            f"recgrad recommend {folder}/model --index {folder}/index --users {folder}/users.parquet "
            f'--filter "price < 20" --output {folder}/cheap.csv',
            f"recgrad export {folder}/model --export_dir {folder}/bundle",
            f"recgrad serve {folder}/bundle --index {folder}/index   # POST /v1/recommend: docs/retrieval.md",
        ]


def _split(shop: Shop) -> dict[str, pa.Table]:
    """A row a user: what she clicked first (`clicked`), and what is to be found (`item_id`)."""
    clicks = shop.log.filter(pa.compute.equal(shop.log["click"], 1))
    users, items = clicks["user_id"].to_numpy(), clicks["item_id"].to_numpy()
    order = np.argsort(users, kind="stable")  # the log is in the order of time, and so is each user's part
    names, starts = np.unique(users[order], return_index=True)
    histories = [np.unique(part, return_index=True) for part in np.split(items[order], starts[1:])]
    in_order = [found[np.argsort(first)] for found, first in histories]
    kept = [(name, part) for name, part in zip(names, in_order) if len(part) >= 3]
    cuts = [min(int(np.ceil(len(part) * SHARE)), len(part) - 1) for _, part in kept]
    early = [part[:cut] for (_, part), cut in zip(kept, cuts)]
    late = [part[cut:] for (_, part), cut in zip(kept, cuts)]
    ids = pa.array([name for name, _ in kept])
    return {
        "train": pa.table({"user_id": ids, "clicked": early, "item_id": early}),
        "test": pa.table({"user_id": ids, "clicked": early, "item_id": late}),
        "users": pa.table({"user_id": ids, "clicked": early}),
    }
