"""The guide's examples work."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from recgrad.check import check_rules
from recgrad.config import edit_config, load_config

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "config.md"
TEXT = GUIDE.read_text(encoding="utf-8") if GUIDE.exists() else ""
EDITS = re.findall(r"^\|[^|]*\| `(\{.*\})` \|$", TEXT, re.MULTILINE)
PATHS = re.findall(r"^\| `([\w.]+(?:\[[^`]*)?)` \| (?!rule)", TEXT, re.MULTILINE)

pytestmark = pytest.mark.skipif(not GUIDE.exists(), reason="the guide is not here")

BASE = {
    "train_config": {"dense_optimizer": {"adam_optimizer": {}}},
    "feature_configs": [
        {"raw_feature": {"feature_name": "price", "boundaries": [1, 2]}},
        {"id_feature": {"feature_name": "cat_1", "embedding_dim": 32}},
        {"id_feature": {"feature_name": "cat_2", "vocab_dict": {"word": 2}}},
        {"id_feature": {"feature_name": "cat_3"}},
    ],
    "model_config": {"feature_groups": [{"group_name": "deep", "feature_names": ["cat_1"]}]},
}
VALUES = {"boundaries": [4, 5], "pooling": "mean", "feature_names[+]": "cat_2"}


def test_the_first_example_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "guide.config"
    path.write_text(TEXT.split("```")[1], encoding="utf-8")
    report = check_rules(load_config(path))
    assert report.ok, report.problems
    assert not report.hints


@pytest.mark.parametrize("edits", EDITS)
def test_values_of_edits(edits: str) -> None:
    base = load_config(BASE)
    assert edit_config(base, edits) != base


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_edits(path: str) -> None:
    base = load_config(BASE)
    value = VALUES.get(path.rpartition(".")[2], 7)
    assert edit_config(base, json.dumps({path: value})) != base


def test_the_guide_has_examples() -> None:
    assert len(EDITS) >= 7
    assert len(PATHS) >= 8
