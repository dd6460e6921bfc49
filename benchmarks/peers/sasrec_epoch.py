"""Steps of sasrec on Beauty: Recgrad's training loop against RecTools', in turns."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from results.bars import Bar, describe_bar

from recgrad.cli.main import main as recgrad
from recgrad.config.edit import edit_config
from recgrad.config.load import load_config
from recgrad.training.assembly import Training, build_training

ROOT = Path(__file__).resolve().parents[2]
BEAUTY = ROOT / "../shared/data/sequences/Beauty.txt"
CONFIG = ROOT / "examples/beauty_sasrec.config"
NAME = "one epoch of sasrec on Beauty against RecTools"
GOAL, STEPS, ROUNDS, WARM_UP = 2.0, 8, 2, 2


def ours(training: Training, steps: int) -> list[float]:
    """The seconds of steps, with the loading of their batches."""
    seconds, begin = [], time.perf_counter()
    for batch in training.train_loader.epoch(0):
        losses = training.task.losses(training.task(batch), batch)
        training.updater.backward(losses["total"])
        training.updater.step()
        now = time.perf_counter()
        seconds.append(now - begin)
        begin = now
        if len(seconds) == steps + WARM_UP:
            break
    return seconds[WARM_UP:]


def theirs(python: str, steps: int) -> list[float]:
    script = Path(__file__).with_name("rectools_sasrec.py")
    line = [python, str(script), str(BEAUTY), "--steps", str(steps)]
    line += ["--threads", str(torch.get_num_threads())]
    done = subprocess.run(line, check=True, capture_output=True, text=True)
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])["seconds"]
    return seconds


def compare_epochs(python: str) -> list[Bar]:
    """The bar; both take the same rows, dims, batches, dropout, and all items as negatives."""
    if not python or not BEAUTY.exists():
        why = "name it with --rectools" if BEAUTY.exists() else "Beauty.txt is not in ../shared/data"
        bar = Bar(NAME, 0.0, GOAL, True, f"not measured: {why}")
        print(describe_bar(bar))
        return [bar]
    with tempfile.TemporaryDirectory() as folder:
        recgrad(["sequences", str(BEAUTY), "--lines", "--out", folder])
        edits = {
            "train_input_path": f"{folder}/train.parquet",
            "eval_input_path": "",
            "data_config.next_item_sampler.input_path": f"{folder}/items.parquet",
            "eval_config.catalogue.item_input_path": f"{folder}/items.parquet",
            "model_dir": f"{folder}/model",
        }
        training = build_training(edit_config(load_config(CONFIG), edits))
        training.task.train()
        training.updater.start_epoch(0)
        found: dict[str, list[float]] = {"ours": [], "theirs": []}
        for _ in range(ROUNDS):
            found["theirs"] += theirs(python, STEPS)
            found["ours"] += ours(training, STEPS)
    own, other = median(found["ours"]), median(found["theirs"])
    note = f"{own * 1e3:.0f} and {other * 1e3:.0f} ms a step of 128 users"
    bar = Bar(NAME, other / own, GOAL, True, note)
    print(describe_bar(bar))
    return [bar]
