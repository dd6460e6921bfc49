"""How soon what was trained is served: a run on a folder that grows, and a server that follows its deltas."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from results.bars import Bar

import recgrad
from recgrad.serving.scorer import Scorer

INTERVAL_SECS, POLL_SECS = 1.0, 0.5
BEYOND_SECS = 1.0  # for a step, for writing and for taking up a small delta: what docs/online.md promises
BATCH, IDS = 256, 20_000
BEGIN = 10  # steps before the first bundle; a checkpoint each so many
CONFIG = """
eval_input_path: ""
train_config {
  num_steps: 1000000 use_tensorboard: false log_step_count_steps: 1 save_checkpoints_steps: %d
  delta_embedding_dump_config { dump_interval_secs: %g }
  sparse_optimizer { adagrad_optimizer { lr: 0.1 } constant_learning_rate {} }
  dense_optimizer { adam_optimizer { lr: 0.01 } constant_learning_rate {} }
}
data_config {
  dataset_type: ParquetDataset fg_mode: FG_NONE batch_size: %d label_fields: "label"
  shuffle: false follow: true
  stream { poll_secs: 0.02 }
}
feature_configs { id_feature { feature_name: "item" embedding_dim: 16 dynamicemb { max_capacity: 10000 } } }
feature_configs { id_feature { feature_name: "user" embedding_dim: 16 zch { zch_size: 5000 lru {} } } }
feature_configs { id_feature { feature_name: "city" embedding_dim: 16 num_buckets: %d } }
model_config {
  feature_groups { group_name: "deep" group_type: DEEP feature_names: ["item", "user", "city"] }
  multi_tower { towers { input: "deep" mlp { hidden_units: [64] } } final { hidden_units: [32] } }
  losses { binary_cross_entropy {} } metrics { auc {} }
}
"""


def rows_of(random: np.random.Generator, item: int) -> pa.Table:
    """A batch in which an item is seen for the first time, in half of the rows."""
    items = random.integers(0, IDS, BATCH)
    items[::2] = item
    columns = {"item": items, "user": random.integers(0, IDS, BATCH), "city": random.integers(0, IDS, BATCH)}
    return pa.table({**columns, "label": np.arange(BATCH) % 2})


class Log:
    """The folder that the run follows."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._number, self._random = folder, 0, np.random.default_rng(4)
        folder.mkdir()

    def put(self, item: int) -> None:
        """A file of one batch."""
        hidden = self.folder / f".{self._number}.parquet"
        pq.write_table(rows_of(self._random, item), hidden)
        os.rename(hidden, self.folder / f"{self._number:05}.parquet")
        self._number += 1


@contextmanager
def command(*words: str) -> Any:
    """A recgrad command in the background, ended by SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, "-m", "recgrad", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def wait_for(found: Any, secs: float = 120.0) -> Any:
    """What a function gives once it is not None."""
    until = time.monotonic() + secs
    while (value := found()) is None:
        if time.monotonic() > until:
            raise TimeoutError("nothing was served")
        time.sleep(0.004)
    return value


def _still(process: Any) -> None:
    """Nothing, as long as a process runs."""
    if process.poll() is not None:
        raise RuntimeError(f"it ended with exit code {process.returncode}: {process.args}")


def ask(url: str, path: str, body: Any = None) -> Any:
    """An answer of the server."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def trained_at(events: Path, step: int) -> float | None:
    """When a step was made."""
    for line in events.read_text().splitlines() if events.exists() else ():
        event = json.loads(line) if line.endswith("}") else {}
        if event.get("kind") == "train" and event["step"] == step:
            return float(event["time"])
    return None


def bench_freshness(trials: int = BEGIN) -> list[Bar]:
    """Seconds from an optimizer step to a score that shows it; and whether scores are those of an export."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        model, bundle, config = folder / "model", folder / "bundle", folder / "live.config"
        config.write_text(CONFIG % (BEGIN, INTERVAL_SECS, BATCH, IDS))
        log = Log(folder / "log")
        for _ in range(BEGIN):
            log.put(0)
        run = ("train", str(config), "--train_input_path", str(log.folder), "--model_dir", str(model))
        with command(*run) as training:
            saved = model / f"model.ckpt-{BEGIN}"
            wait_for(lambda: saved if saved.exists() else _still(training))
            recgrad.export_model(model, export_dir=bundle, checkpoint_path=saved)
            follow = ("--follow", str(model / "delta_embedding_dump"), "--poll-s", str(POLL_SECS))
            with command("serve", str(bundle), "--port", "0", "--workers", "1", *follow) as server:
                found = re.search(r"http://[0-9.]+:\d+", server.stdout.readline())
                assert found is not None
                seconds = _measure(found.group(0), log, model, trials)
                same = _same_as_export(found.group(0), model, folder / "exported")
    bound = INTERVAL_SECS + POLL_SECS + BEYOND_SECS
    note = f"slowest {max(seconds):.2f} s, median {median(seconds):.2f} s, bound {bound:g} s"
    return [
        Bar("seconds from a row trained to it served / stated bound", max(seconds) / bound, 1.0, False, note),
        Bar("scores served after all deltas are an export's, bit for bit", float(same), 1.0, True),
    ]


def _measure(url: str, log: Log, model: Path, trials: int) -> list[float]:
    """One new item after another, at all moments between two deltas."""
    random, seconds = np.random.default_rng(5), []
    for trial in range(trials):
        item = IDS + trial
        body = {"rows": [{"item": item, "user": 1, "city": 1}]}
        before = ask(url, "/v1/score", body)["scores"]
        log.put(item)
        step = BEGIN + 1 + trial

        def served(body: Any = body, step: int = step) -> float | None:
            if ask(url, "/v1/model")["delta"]["step"] < step:
                return None
            return time.time()

        at = wait_for(served)
        assert ask(url, "/v1/score", body)["scores"] != before
        made = trained_at(model / "events.jsonl", step)
        assert made is not None
        seconds.append(at - made)
        time.sleep(random.uniform(0, INTERVAL_SECS))
    return seconds


def _same_as_export(url: str, model: Path, exported: Path) -> bool:
    """Whether the server answers as an export of a checkpoint of the same step does."""
    step = ask(url, "/v1/model")["delta"]["step"]
    recgrad.export_model(model, export_dir=exported, checkpoint_path=model / f"model.ckpt-{step}")
    asked = {"item": [7, IDS, IDS + 3, 10**12], "user": [1, 2, 3, 4], "city": [1, 5, 7, 9]}
    rows = [dict(zip(asked, values, strict=True)) for values in zip(*asked.values(), strict=True)]
    served = ask(url, "/v1/score", {"rows": rows})["scores"]
    expected = Scorer.load(exported).score(pa.table(asked))
    return all(np.array_equal(np.float32(served[name]), value) for name, value in expected.items())
