"""Runs of a sequence model: killed and resumed, on two ranks as on one, and over rows that are odd."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import recgrad
from recgrad.cli.main import main
from recgrad.errors import DataError
from recgrad.training.checkpoint import read_checkpoint
from recgrad.training.run import load_trained

ITEMS, STEPS = 20, 24


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(0)
    log = [
        {"user": user, "item": int(item), "time": 10 * user + i}
        for user in range(200)
        for i, item in enumerate(rng.integers(1, ITEMS + 1, rng.integers(4, 12)))
    ]
    pq.write_table(pa.Table.from_pylist(log), path / "log.parquet")
    flags = ["--user", "user", "--item", "item", "--time", "time", "--out", str(path)]
    assert main(["sequences", str(path / "log.parquet"), *flags]) == 0
    return path


def edits(**more: object) -> dict[str, object]:
    return {
        "train_config.num_epochs": 0,
        "train_config.num_steps": STEPS,
        "train_config.save_checkpoints_epochs": 0,
        "train_config.early_stopping": None,  # these rows are noise
        "train_config.save_checkpoints_steps": 3,
        "data_config.batch_size": 8,
        **more,
    }


def command(shop: Path, folder: Path, ranks: int, changed: dict[str, object], *flags: str) -> list[str]:
    line = [sys.executable, "-m", "recgrad", "train", str(shop / "sasrec.config"), "--model-dir", str(folder)]
    line += ["--num-threads", "1", "--edit-config-json", json.dumps(changed), *flags]
    return [*line, "--nproc", "2"] if ranks == 2 else line


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_resumes_bit_for_bit(shop: Path, tmp_path: Path, ranks: int, shuffle: bool) -> None:
    if ranks == 2:
        pytest.importorskip("torchrec")
    changed = edits(**{"data_config.shuffle": shuffle})
    process = subprocess.Popen(
        command(shop, tmp_path / "killed", ranks, changed),
        env=environment(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not list((tmp_path / "killed").glob("model.ckpt-*/manifest.json")) and process.poll() is None:
        time.sleep(0.01)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)  # all processes at once, wherever they are
    process.wait()
    for folder, flags in (("killed", ["--continue-train"]), ("whole", [])):
        done = subprocess.run(
            command(shop, tmp_path / folder, ranks, changed, *flags),
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert_same_end(tmp_path, STEPS)


def assert_same_end(folder: Path, step: int) -> None:
    """The last checkpoints of the runs `whole` and `killed` are equal, bit for bit."""
    whole, killed = (read_checkpoint(folder / name / f"model.ckpt-{step}") for name in ("whole", "killed"))
    for one, other in zip(whole.tables, killed.tables, strict=True):
        assert one.row_ids.tobytes() == other.row_ids.tobytes()
        assert one.weights.tobytes() == other.weights.tobytes()
    assert tensors(whole.tree) == tensors(killed.tree)


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True])
def test_killed_at_random_moments_it_resumes_bit_for_bit(shop: Path, tmp_path: Path, shuffle: bool) -> None:
    """In steps, between epochs and while checkpoints are written, in time order and shuffled."""
    steps = 90
    changed = edits(**{
        "train_config.num_steps": steps,
        "train_config.log_step_count_steps": 1,
        "data_config.shuffle": shuffle,
    })  # fmt: skip
    rng, killed = random.Random(int(shuffle)), 0
    for attempt in range(20):
        flags = ["--continue-train"] if attempt else []
        process = subprocess.Popen(
            command(shop, tmp_path / "killed", 1, changed, *flags),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_for_a_step(tmp_path / "killed" / "events.jsonl", process)
        try:
            process.wait(timeout=rng.uniform(0, 0.25) if killed < 3 else 120)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += 1
        said = process.communicate()[1]
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, said
    assert process.returncode == 0
    assert killed
    line = command(shop, tmp_path / "whole", 1, changed)
    subprocess.run(line, env=environment(), capture_output=True, check=True)
    assert_same_end(tmp_path, steps)


def wait_for_a_step(events: Path, process: subprocess.Popen[str]) -> None:
    """Until this process has logged a step of its own, or has ended."""
    before = events.stat().st_size if events.exists() else 0
    while process.poll() is None:
        if events.exists() and '"kind": "train"' in events.read_text()[before:]:
            return
        time.sleep(0.01)


def tensors(tree: object, name: str = "") -> dict[str, bytes]:
    """The bytes of every tensor of a checkpoint's tree."""
    if isinstance(tree, torch.Tensor):
        return {name: tree.contiguous().numpy().tobytes()}
    if not isinstance(tree, Mapping):
        return {}
    return {k: v for key, value in tree.items() for k, v in tensors(value, f"{name}.{key}").items()}


@pytest.mark.slow
def test_two_ranks_learn_what_one_does(shop: Path, tmp_path: Path) -> None:
    """Histories differ in length, and every position weighs the same, on whichever rank it is."""
    pytest.importorskip("torchrec")
    table, found = pq.read_table(shop / "train.parquet").slice(0, 160), {}
    lengths = np.diff(table["history__item"].combine_chunks().offsets.to_numpy())
    halves = lengths.reshape(10, 2, 8).sum(2)
    assert (halves[:, 0] != halves[:, 1]).any()  # else a mean of means would do
    text = (shop / "sasrec.config").read_text()
    text = text.replace("dropout_ratio: 0.5", "dropout_ratio: 0")
    text = text.replace("adam_optimizer { lr: 0.001 }", "sgd_optimizer { lr: 0.5 }")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "sasrec.config").write_text(text)
    for ranks in (1, 2):
        # A rank reads a consecutive share of the rows; both together have the batches of one.
        order = np.arange(160).reshape(10, ranks, 16 // ranks).transpose(1, 0, 2).ravel()
        pq.write_table(table.take(order), tmp_path / f"{ranks}.parquet")
        changed = edits(**{
            "train_config.num_steps": 6,
            "data_config.batch_size": 16 // ranks,
            "data_config.shuffle": False,
            "train_input_path": str(tmp_path / f"{ranks}.parquet"),
        })  # fmt: skip
        line = command(tmp_path / "plain", tmp_path / str(ranks), ranks, changed)
        done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found[ranks] = load_trained(tmp_path / str(ranks), None, device=torch.device("cpu")).task.model
    one, other = (found[ranks].state_dict() for ranks in (1, 2))
    for name, value in one.items():
        if "engine" not in name:
            torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("history__item", [1, 99], "id 99 is outside num_buckets 21 (column 'history__item', row 7 of odd"),
        ("history__item", [1, -2], "column 'history__item', row 7 of odd.parquet"),
        ("item", 99, "column 'item', row 7 of odd.parquet"),
        ("item", 0, "item 0 of column 'item' is not in item table"),
        ("history__item", [3, 0], "item 0 of column 'history__item' is not in item table"),
    ],
)
def test_ids_out_of_range_are_named_with_their_row(shop, tmp_path, column, value, message) -> None:
    rows = pq.read_table(shop / "train.parquet").slice(0, 16).to_pylist()
    rows[7][column] = value
    with pytest.raises(DataError) as caught:
        train_rows(shop, tmp_path, rows)
    assert message in str(caught.value)
    assert "odd.parquet" in str(caught.value)


def train_rows(shop: Path, tmp_path: Path, rows: list[dict[str, object]]) -> object:
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "odd.parquet")
    changed = edits(**{
        "train_config.num_steps": 2,
        "data_config.shuffle": False,
        "train_input_path": str(tmp_path / "odd.parquet"),
    })  # fmt: skip
    return recgrad.train(
        shop / "sasrec.config", edit_config_json=json.dumps(changed), model_dir=str(tmp_path / "model")
    )


def test_empty_histories_and_those_of_one_item_train(shop: Path, tmp_path: Path) -> None:
    """An empty history is one position of the default value, which is told the row's own item."""
    rows = pq.read_table(shop / "train.parquet").slice(0, 16).to_pylist()
    for i in (0, 3, 15):
        rows[i]["history__item"] = []
        rows[i]["history__timestamp"] = []
    rows[1]["history__item"], rows[1]["history__timestamp"] = [5], [1]
    result = train_rows(shop, tmp_path, rows)
    assert all(np.isfinite(value) for value in result.metrics.values())
