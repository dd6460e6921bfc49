"""The newcomer's first command, as it is typed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recgrad.cli.main import main
from recgrad.cli.quickstart import _to_find_commands


@pytest.mark.slow
def test_the_quickstart_comes_within_a_hundredth_of_the_best_auc(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recgrad", "quickstart", "--out", str(tmp_path / "quick")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    found = re.search(r"AUC +(\d\.\d+) \(best reachable: (\d\.\d+)", done.stdout)
    assert found
    auc, best = map(float, found.groups())
    assert best - 0.01 <= auc < best
    assert "samples/s" in done.stdout
    assert "hint:" not in done.stderr
    again = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert again.returncode == 2
    assert "remove it or choose another --out" in again.stderr


def test_who_does_not_find_the_commands_is_told_how(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert _to_find_commands().split("\n")[0] == "source .venv/bin/activate"
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert _to_find_commands() == ""


def test_a_wrong_number_of_threads_is_told_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quickstart", "--out", str(tmp_path / "quick"), "--num-threads", "0"]) == 2
    assert "--num_threads: must be at least 1, got 0" in capsys.readouterr().err
    assert not (tmp_path / "quick").exists()
