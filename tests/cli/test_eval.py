"""`recgrad eval`: what it prints and writes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

import pytest

from recgrad.cli.main import main
from recgrad.training import run


def refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is not JSON")


def test_metrics_that_are_undefined_are_null_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def evaluate(*_: Any, **__: Any) -> dict[str, float]:
        return {"grouped_auc": math.nan, "auc": 0.75}

    monkeypatch.setattr(run, "evaluate", evaluate)
    target = tmp_path / "metrics.json"
    assert main(["eval", "some.config", "--eval_result_filename", str(target)]) == 0
    assert json.loads(target.read_text(), parse_constant=refuse) == {"auc": 0.75, "grouped_auc": None}
    assert capsys.readouterr().out == "auc: 0.750000\ngrouped_auc: nan\n"
