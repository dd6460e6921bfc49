"""Models of the examples on gowalla: killed runs resume bit for bit, and two processes train."""

from __future__ import annotations

import json
import math
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import recgrad
from recgrad.training.checkpoint import read_checkpoint

NAMES = ["mind", "dat", "tdm", "two_towers"]
KILLED = """
import os, signal, sys
from recgrad.cli.main import main
from recgrad.training.task import Task
forward, calls = Task.forward, 0
def counted(self, *args, **options):
    global calls
    calls += self.training
    if calls == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    return forward(self, *args, **options)
Task.forward = counted
main(sys.argv[1:])
"""


def edits(name: str) -> str:
    found: dict[str, object] = {
        "train_config.num_steps": 10,
        "train_config.num_epochs": 0,
        "train_config.save_checkpoints_steps": 3,
        "data_config.batch_size": 16,
    }
    if name == "two_towers":
        found["model_config.feature_groups[0].combine"] = "SUM"
    if name == "tdm":
        found["data_config.tdm_sampler.layer_num_sample"] = [0, 1, *[2] * 10]  # of 2,000 places
        found["data_config.tdm_sampler.remain_ratio"] = 0.5
        found["eval_config.num_steps"] = 1
    return json.dumps(found)


@pytest.fixture(scope="module")
def places(project: Path) -> Path:
    """The project with its data and its tree."""
    from recgrad.cli.main import main

    before = Path.cwd()
    os.chdir(project)
    try:
        program = runpy.run_path("examples/gowalla.py")
        program["main"]("../shared/data/gowalla", "data/gowalla")
        flags = ["--item-input-path", "data/gowalla/items.parquet", "--cate-id-field", "visits"]
        flags += ["--raw-attr-fields", "visits", "--tree-output-dir", "data/gowalla/tree"]
        assert main(["tdm-tree", *flags]) == 0
    finally:
        os.chdir(before)
    return project


def run(places: Path, name: str, folder: str, *program: str, flags: tuple[str, ...] = ()) -> int:
    """The exit code of a process that trains an example."""
    line = ["train", f"examples/gowalla_{name}.config", "--model-dir", folder, "--num-threads", "1", *flags]
    done = subprocess.run(
        [sys.executable, *program, *line, "--edit-config-json", edits(name)],
        cwd=places,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_killed_run_resumes_bit_for_bit(name: str, places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(places, name, f"killed_{name}", "-c", KILLED) == -signal.SIGKILL
    monkeypatch.chdir(places)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # bits depend on their number
    for folder, continued in ((f"whole_{name}", False), (f"killed_{name}", True)):
        recgrad.train(
            f"examples/gowalla_{name}.config",
            edit_config_json=edits(name),
            model_dir=folder,
            continue_train=continued,
        )
    torch.set_num_threads(before)
    events = map(json.loads, Path(f"killed_{name}/events.jsonl").read_text().splitlines())
    # The last checkpoint may not have been whole yet.
    assert [event["step"] for event in events if event["kind"] == "start"] in ([0, 3], [0, 6])
    whole, killed = (read_checkpoint(Path(f"{one}_{name}/model.ckpt-10")) for one in ("whole", "killed"))
    assert [table.name for table in whole.tables] == [table.name for table in killed.tables]
    for one, other in zip(whole.tables, killed.tables, strict=True):
        assert one.row_ids.tobytes() == other.row_ids.tobytes()
        assert one.weights.tobytes() == other.weights.tobytes()
    assert tensors(whole.tree) == tensors(killed.tree)


def tensors(tree: object, name: str = "") -> dict[str, bytes]:
    """The bytes of every tensor of a checkpoint's tree."""
    if isinstance(tree, torch.Tensor):
        return {name: tree.contiguous().numpy().tobytes()}
    if not isinstance(tree, Mapping):
        return {}
    return {k: v for key, value in tree.items() for k, v in tensors(value, f"{name}.{key}").items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_processes_train(name: str, places: Path) -> None:
    pytest.importorskip("torchrec")
    assert run(places, name, f"two_{name}", "-m", "recgrad", flags=("--nproc", "2")) == 0
    lines = (places / f"two_{name}" / "train_eval_result.txt").read_text().splitlines()
    metric = "auc" if name == "tdm" else "catalogue_recall@20"
    assert math.isfinite(json.loads(lines[-1])[metric])
