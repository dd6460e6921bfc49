"""The script of docs/moving.md runs as it stands and learns what its data hold."""

from __future__ import annotations

import csv
import random
import re
from pathlib import Path
from typing import Any

import pytest

from recgrad.check import check_config
from recgrad.config import load_config

DOCS = Path(__file__).resolve().parents[1] / "docs" / "moving.md"


def write_clicks(path: Path, rows: int, rng: random.Random) -> None:
    """Users differ in how often they click; nothing else matters."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["click", "user_id", "item_id", "city", "age", "price", "tags"])
        for _ in range(rows):
            user = rng.randrange(100)
            tags = "|".join(rng.choices("abcdef", k=rng.randrange(4)))
            place = rng.choice(["Rome", "Oslo", ""])
            price = round(9 * rng.random(), 2)
            clicked = int(rng.random() < user / 100)
            writer.writerow([clicked, f"u{user}", f"i{rng.randrange(300)}", place, 18 + user, price, tags])


def test_the_script_that_replaces_deepctr_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    write_clicks(tmp_path / "train.csv", 4000, rng)
    write_clicks(tmp_path / "valid.csv", 1000, rng)
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    names: dict[str, Any] = {}
    exec(compile(code, str(DOCS), "exec"), names)
    assert names["result"].metrics["auc"] > 0.75
    scores = list(csv.reader((tmp_path / "scores.csv").open()))
    assert scores[0] == ["user_id", "probs"]
    assert len(scores) == 1001
    assert not check_config(load_config(names["config"])).problems
