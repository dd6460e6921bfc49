"""The Python of the pages under docs/ runs as it stands, one block after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from google.protobuf import text_format

import recgrad
from recgrad.synth import write_synth
from recgrad.training.checkpoint import Snapshot, TableRows, read_table, write_checkpoint

DOCS = Path(__file__).resolve().parents[1] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)


def run(page: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for code in blocks(page):
        exec(compile(code, page, "exec"), names)
    return names


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_embedding() -> None:
    assert list(run("embedding.md")["x"].shape) == [2, 48]


def test_losses() -> None:
    names = run("losses.md")
    assert names["value"].shape == ()
    assert torch.equal(names["probs"], torch.sigmoid(names["logits"]))


def test_metrics() -> None:
    run("metrics.md")


def test_config(folder: Path) -> None:
    write_synth(folder, 100, eval_rows=100)
    names = run("config.md")
    assert names["report"].ok
    assert "num_epochs: 2" in (folder / "experiments/deepfm/pipeline.config").read_text()


def test_data(folder: Path) -> None:
    write_synth(folder, 3000, eval_rows=100)
    loader = run("data.md")["loader"]
    assert loader.position.rows == 3000


def test_checkpoints(folder: Path) -> None:
    ids = np.arange(0, 2_000_000, 500_000)
    rows = TableRows(
        "user_id", 2_000_000, 16, ids, np.ones((4, 16), np.float32), {"sum": np.ones((4, 16), np.float32)}
    )
    (folder / "run").mkdir()
    write_checkpoint(
        "run/model.ckpt-1200", Snapshot(1200, {"model": {"deep.0.weight": torch.ones(2)}}, [rows])
    )
    torch.save(torch.ones(3, 4), "words.pt")
    part = run("checkpoints.md")["part"]
    assert part.row_ids.tolist() == [0, 500_000]
    assert part.weights.shape == (2, 8)


def test_the_pretrained_embeddings_of_the_page_are_trained_from(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "recgrad")
    write_synth(folder, 300, eval_rows=100)
    config = recgrad.load_config("deepfm.config")
    (width,) = {feature.id_feature.embedding_dim for feature in config.feature_configs} - {0}
    words = torch.arange(3.0 * width).reshape(3, width)
    torch.save(words, "words.pt")
    code = next(block for block in blocks("checkpoints.md") if "pretrained" in block)
    head, _, tail = code.partition("snapshot = ")
    exec(compile(head + tail.partition("# Pre-trained")[2].partition("\n")[2], "checkpoints.md", "exec"), {})
    setting = re.search(r"^train_config {.*}$", (DOCS / "checkpoints.md").read_text(encoding="utf-8"), re.M)
    assert setting is not None
    text_format.Merge(setting.group().replace("…", "num_steps: 1"), config)
    config.train_config.ClearField("num_epochs")
    config.train_config.sparse_optimizer.adam_optimizer.lr = 0
    Path("words.map").write_text("cat_3_emb words\n")
    recgrad.train(config, model_dir="tuned")
    assert "restored from step 0" in caplog.text
    table = read_table("tuned/model.ckpt-1", "cat_3_emb", rows=(0, 3))
    assert table.weights.tolist() == words.tolist()


def test_no_page_is_forgotten() -> None:
    """The rest is run by tests/optim, tests/models, tests/serving and the files beside this one."""
    elsewhere = {
        "api.md",
        "export.md",
        "serving.md",
        "optimizers.md",
        "schedules.md",
        "models.md",
        "moving.md",
        "extending.md",
        "start.md",
    }
    here = {name.removeprefix("test_") + ".md" for name in globals() if name.startswith("test_")}
    assert {page.name for page in DOCS.glob("*.md") if blocks(page.name)} <= here | elsewhere
