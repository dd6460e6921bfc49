"""Two processes rank a catalogue as one does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import recgrad
from recgrad.config import save_config


@pytest.mark.slow
def test_two_processes_evaluate_as_one(shop, tmp_path: Path) -> None:
    pytest.importorskip("torchrec")
    config = shop.config()
    catalogue = config.eval_config.catalogue
    catalogue.item_input_path = str(shop.folder / "items.parquet")
    catalogue.item_id_field, catalogue.user_id_field = "item_id", "user_id"
    catalogue.top_k.extend([5, 20])
    config.train_config.num_steps = 6
    config.model_dir = str(tmp_path / "model")
    save_config(config, tmp_path / "two.config")
    command = [sys.executable, "-m", "recgrad", "train", str(tmp_path / "two.config"), "--nproc", "2"]
    done = subprocess.run(
        [*command, "--num-threads", "1"], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "model" / "train_eval_result.txt").read_text().splitlines()
    two = json.loads(lines[-1])
    one = recgrad.evaluate(tmp_path / "model")
    names = [name for name in one if name.startswith("catalogue_")]
    assert len(names) == 18
    assert {name: two[name] for name in names} == pytest.approx({name: one[name] for name in names}, abs=1e-9)
