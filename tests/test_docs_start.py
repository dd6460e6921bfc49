"""A newcomer who follows docs/start.md line by line gets what it says."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest

from recgrad.cli.main import main

PAGE = Path(__file__).resolve().parents[1] / "docs" / "start.md"
TEXT = PAGE.read_text(encoding="utf-8")


def commands(text: str) -> list[list[str]]:
    """The lines of the page's block of commands, without `recgrad` and comments."""
    (block,) = re.findall(r"```\n(recgrad check.*?)```", text, re.S)
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines]


def test_the_steps_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    exec(compile(program, str(PAGE), "exec"), {})
    (config,) = re.findall(r"```protobuf\n(.*?)```", TEXT, re.S)
    Path("first.config").write_text(config)
    steps = commands(TEXT)
    assert [step[0] for step in steps] == ["check", "train", "predict", "report"]
    for step in steps:
        assert main(step) == 0, step
    assert "hint" not in "".join(capsys.readouterr())
    metrics = json.loads(Path("first/train_eval_result.txt").read_text().splitlines()[-1])
    # "an AUC of about 0.8 …; no model can do better than 0.81 or so"
    assert 0.79 < metrics["auc"] < 0.82
    rows = list(csv.DictReader(Path("scores.csv").read_text().splitlines()))
    assert len(rows) == 5000
    assert set(rows[0]) == {"user_id", "item_id", "click", "probs"}
    assert Path("first/report.html").exists()
