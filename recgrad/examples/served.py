"""From a log to a served score."""

from __future__ import annotations

import json
from pathlib import Path

from recgrad.examples.example import EXAMPLES, Example, Request, Step, command, write_log
from recgrad.synth import Shop

COLUMNS = ["user_id", "item_id", "category", "price", "device", "country", "recent"]


@EXAMPLES.register("served")
class Served(Example):
    """Served: from a log to a bundle that scores without torch, and a request over HTTP."""

    rows = 20_000
    needs = {"onnx": "export", "uvloop": "serve", "msgspec": "serve"}  # noqa: RUF012

    def write(self, folder: Path, shop: Shop) -> str:
        path = write_log(folder, shop)
        rows = shop.log.select(COLUMNS).slice(0, 2).to_pylist()
        (folder / "request.json").write_text(json.dumps({"rows": rows}) + "\n")
        return f"{path}: who was shown what, and clicked; and two of its rows to score, {folder}/request.json"

    def steps(self, folder: Path) -> list[Step]:
        return [
            command(f"init {folder}/log.parquet --label click --out {folder}/run"),
            command(f"train {folder}/run/pipeline.config"),
            command(f"export {folder}/run/model --export_dir {folder}/bundle"),
            Request(folder / "bundle", json.loads((folder / "request.json").read_text())),
        ]

    def more(self, folder: Path) -> list[str]:
        return [
            f"recgrad serve {folder}/bundle   # http://127.0.0.1:8000/ is a page to try it with",
            "less docs/serving.md   # stored features, new models without a failed request, containers",
        ]
