"""Click-through rate from a log."""

from __future__ import annotations

from pathlib import Path

from recgrad.examples.example import EXAMPLES, Example, Step, command, write_log
from recgrad.synth import Shop


@EXAMPLES.register("ctr")
class Ctr(Example):
    """Click-through rate: from a log to a config, a model and its report."""

    def write(self, folder: Path, shop: Shop) -> str:
        path = write_log(folder, shop)
        return f"{path}: who was shown what, and clicked; no model has a higher AUC than {shop.best_auc:.3f}"

    def steps(self, folder: Path) -> list[Step]:
        return [
            command(f"init {folder}/log.parquet --label click --out {folder}/run"),
            command(f"train {folder}/run/pipeline.config"),
            command(f"report {folder}/run/model"),
        ]

    def more(self, folder: Path) -> list[str]:
        return [
            f"recgrad tune {folder}/run/pipeline.config --trials 20 --out {folder}/search",
            "recgrad example multi-task   # clicks and purchases by one model",
        ]
