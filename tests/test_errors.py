"""Errors about a relative path say where it leads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import recgrad
from recgrad.cli.main import main
from recgrad.data.readers.files import list_files
from recgrad.errors import RecgradError, whole_path
from recgrad.training.checkpoint import read_checkpoint, resolve_checkpoint
from recgrad.training.checkpoint.fit import load_param_map


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def test_only_paths_that_depend_on_the_folder_are_spelled_out(folder: Path) -> None:
    assert whole_path("data/a.csv") == f" ({folder}/data/a.csv)"
    assert whole_path(Path("../a")) == f" ({folder.parent}/a)"
    assert whole_path("/data/a.csv") == whole_path("s3://bucket/a.csv") == whole_path("~/a.csv") == ""


@pytest.mark.parametrize(
    "call",
    [
        lambda: list_files("no/a.parquet", (".parquet",)),
        lambda: list_files("no/*.parquet", (".parquet",)),
        lambda: recgrad.load_config("no/a.config"),
        lambda: resolve_checkpoint("no"),
        lambda: read_checkpoint("no/model.ckpt-1"),
        lambda: load_param_map("no/map", here=set(), there=set()),
    ],
)
def test_what_is_not_there(folder: Path, call: Callable[[], object]) -> None:
    with pytest.raises(RecgradError) as error:
        call()
    assert f"({folder}/no" in str(error.value)


@pytest.mark.parametrize("command", [["ckpt", "list", "no"], ["check", "no/a.config"], ["report", "no"]])
def test_commands(folder: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2
    assert f"({folder}/no" in capsys.readouterr().err.replace("\n", "")
