"""A model that is trained on, a day at a time."""

from __future__ import annotations

from pathlib import Path

from recgrad.examples.example import EXAMPLES, Example, Step, command, write_config
from recgrad.synth import Shop, write_days


@EXAMPLES.register("incremental")
class Incremental(Example):
    """A day at a time: each day is predicted by the model of the day before, then learned."""

    def write(self, folder: Path, shop: Shop) -> str:
        paths = write_days(shop, folder / "days")
        write_config(folder, "day.config")
        return f"{folder}/days: {len(paths)} files, one a day, and {folder}/day.config"

    def steps(self, folder: Path) -> list[Step]:
        return [
            command(f"train {folder}/day.config --days '{folder}/days/*.parquet' --model_dir {folder}/runs"),
            command(f"report {folder}/runs/20260107"),
        ]

    def more(self, folder: Path) -> list[str]:
        return [
            f"the same command again, when {folder}/days has a new file: it trains on that day alone",
            "less docs/online.md   # ids that come and go, capacity, what a day leaves behind",
        ]
