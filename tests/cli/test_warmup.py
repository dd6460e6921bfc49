"""`recgrad warmup`: afterwards a run compiles nothing, and nothing else is left of it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from recgrad.cli.main import main
from recgrad.config import load_config, save_config
from recgrad.synth import write_synth


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config of a small run, in a folder of its own."""
    folder = tmp_path_factory.mktemp("clicks")
    write_synth(folder, 500, eval_rows=100)
    config = load_config(folder / "deepfm.config")
    config.train_config.use_tensorboard = False
    save_config(config, folder / "deepfm.config")
    return folder


def run(cache: Path, *arguments: str, cwd: Path) -> str:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-m", "recgrad", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.slow
def test_a_first_step_after_the_warm_up_compiles_nothing(clicks: Path, tmp_path: Path) -> None:
    before, cache = names(clicks), tmp_path / "cache"
    said = run(cache, "warmup", "deepfm.config", cwd=clicks)
    assert names(clicks) == before
    kept = names(cache)
    if find_spec("torchrec") is not None:
        assert any("pack_vectors" in name for name in kept), "ranks need it"
    assert f"compiled {sum(name.endswith('.nbc') for name in kept)} kernels" in said
    assert "compiled 0 kernels" in run(cache, "warmup", "deepfm.config", cwd=clicks)
    assert names(cache) == kept


def test_flags_of_a_config_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warmup", "--no_custom_code"]) == 2
    assert "need a config" in capsys.readouterr().err


def test_without_a_folder_to_keep_them_in_there_is_nothing_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["warmup"]) == 2
    assert "set XDG_CACHE_HOME" in capsys.readouterr().err
