"""Clicks and purchases by one model."""

from __future__ import annotations

from pathlib import Path

from recgrad.examples.example import EXAMPLES, Example, Step, command, write_log
from recgrad.synth import Shop


@EXAMPLES.register("multi-task")
class MultiTask(Example):
    """Clicks and purchases together: MMoE, with a tower for each."""

    def write(self, folder: Path, shop: Shop) -> str:
        return f"{write_log(folder, shop)}: impressions with two labels, click and purchase"

    def steps(self, folder: Path) -> list[Step]:
        return [
            command(f"init {folder}/log.parquet --label click,purchase --out {folder}/run"),
            command(f"train {folder}/run/pipeline.config"),
            command(
                f"predict {folder}/run/model --predict_input_path {folder}/log.parquet "
                f"--predict_output_path {folder}/scores.parquet --reserved_columns user_id,item_id"
            ),
        ]

    def more(self, folder: Path) -> list[str]:
        return [
            f"less {folder}/run/pipeline.config   # task_towers: a label, a loss and metrics each",
            "recgrad list models   # ple, dbmtl, esmm, aitm … take the same towers",
        ]
