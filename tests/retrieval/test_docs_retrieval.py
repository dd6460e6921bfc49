"""The ten commands of docs/retrieval.md run as they stand, on a tiny gowalla."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from recgrad.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


def test_ten_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    source = tmp_path / "shared" / "data" / "gowalla"
    source.mkdir(parents=True)
    for name, most in (("train.txt", 12), ("valid.txt", 3), ("test.txt", 4)):
        lines = [" ".join(map(str, [user, *rng.choice(2000, most, replace=False)])) for user in range(30)]
        (source / name).write_text("\n".join(lines))
    project = tmp_path / "project"
    project.mkdir()
    shutil.copytree(ROOT / "examples", project / "examples")
    monkeypatch.chdir(project)
    page = (ROOT / "docs" / "retrieval.md").read_text()
    block = re.search(r"```sh\n(.*?)```", page, re.DOTALL)
    assert block is not None
    commands = [shlex.split(line) for line in block.group(1).splitlines()]
    assert len(commands) == 10
    for program, *arguments in commands:
        if program == "python":
            monkeypatch.setattr(sys, "argv", arguments)
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            assert main(arguments) == 0, arguments
    train = pq.read_table("data/gowalla/train.parquet")
    seen = set(zip(train["user_id"].to_pylist(), train["item_id"].to_pylist()))
    lists = pq.read_table("lists.parquet")
    assert lists.num_rows == 30
    assert all(len(row) == 20 for row in lists["items"].to_pylist())
    found = {
        (user, item)
        for user, row in zip(lists["user_id"].to_pylist(), lists["items"].to_pylist())
        for item in row
    }
    assert not found & seen
    visits = pq.read_table("data/gowalla/items.parquet")["visits"].to_numpy()
    quiet = pyarrow.csv.read_csv("quiet.csv")
    assert (visits[quiet["item_id"].to_numpy()] < 50).all()
