"""The ten commands of docs/retrieval.md run as they stand, on a tiny gowalla; other examples train."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from recgrad.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def ask(url: str, body: str) -> dict:
    """The answer of a server that may be starting."""
    for _ in range(600):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body.encode()), timeout=30) as answer:
                return json.load(answer)
        except OSError as error:
            if getattr(error, "code", 503) != 503:
                raise
            time.sleep(0.2)
    raise AssertionError("the server does not answer")


@pytest.mark.slow
def test_ten_commands(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("uvloop")
    monkeypatch.chdir(project)
    page = (ROOT / "docs" / "retrieval.md").read_text().replace("8000", str(free_port()))
    block = re.search(r"```sh\n(.*?)```", page, re.DOTALL)
    assert block is not None
    commands = [shlex.split(line) for line in block.group(1).splitlines()]
    assert len(commands) == 10
    served, server = {}, None
    try:
        for program, *arguments in commands:
            if program == "python":
                monkeypatch.setattr(sys, "argv", arguments)
                runpy.run_path(arguments[0], run_name="__main__")
            elif arguments[-1] == "&":
                server = subprocess.Popen([sys.executable, "-m", "recgrad", *arguments[:-1]])
            elif program == "curl":
                served = ask(arguments[3], arguments[5])
            else:
                assert main(arguments) == 0, arguments
    finally:
        if server is not None:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    train = pq.read_table("data/gowalla/train.parquet")
    seen = dict(zip(train["user_id"].to_pylist(), train["item_id"].to_pylist()))
    lists = pq.read_table("lists.parquet")
    assert lists.num_rows == 30
    for user, items in zip(lists["user_id"].to_pylist(), lists["items"].to_pylist()):
        assert len(items) == 20
        assert not set(items) & set(seen[user])
    visits = pq.read_table("data/gowalla/items.parquet")["visits"].to_numpy()
    quiet = pyarrow.csv.read_csv("quiet.csv")
    assert (visits[quiet["item_id"].to_numpy()] < 50).all()
    assert len(served["items"]) == 5
    assert served["scores"] == sorted(served["scores"], reverse=True)


@pytest.mark.parametrize("name", ["mind", "dat", "tdm"])
def test_other_examples_train_and_recommend(
    name: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    if not Path("data/gowalla/tree").exists():
        monkeypatch.setattr(sys, "argv", ["examples/gowalla.py", "../shared/data/gowalla", "data/gowalla"])
        runpy.run_path("examples/gowalla.py", run_name="__main__")
        flags = ["--item-input-path", "data/gowalla/items.parquet", "--cate-id-field", "visits"]
        flags += ["--raw-attr-fields", "visits", "--tree-output-dir", "data/gowalla/tree"]
        assert main(["tdm-tree", *flags]) == 0
    edits: dict[str, object] = {"train_config.num_steps": 2, "data_config.batch_size": 16}
    if name == "tdm":
        # 2,000 places are 12 levels.
        edits["data_config.tdm_sampler.layer_num_sample"] = [0, 1, *[2] * 10]
        edits["eval_config.num_steps"] = 1
    config = f"examples/gowalla_{name}.config"
    edits["train_config.num_epochs"] = 0
    assert main(["train", config, "--edit-config-json", json.dumps(edits)]) == 0
    model, index = f"experiments/gowalla_{name}", "data/gowalla/tree"
    kind = ["--kind", "tdm"] if name == "tdm" else []
    if name != "tdm":
        index = f"places_{name}"
        assert main(["index", model, "--items", "data/gowalla/items.parquet", "--out", index]) == 0
    flags = ["--users", "data/gowalla/users.parquet", "--k", "5", "--output", f"{name}.parquet"]
    assert main(["recommend", model, "--index", index, *kind, *flags]) == 0
    assert {len(items) for items in pq.read_table(f"{name}.parquet")["items"].to_pylist()} == {5}
