"""Data that several ranks read as one process does, and runs of several ranks on it."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import text_format

import recgrad
from recgrad.config import PipelineConfig, save_config

BATCH = 32
STEPS = 50
ROWS = BATCH * STEPS
EVAL_ROWS = 333
TIMEOUT_SECS = 240
PROGRAM = Path(__file__).with_name("rank_jobs.py")

BASE = """
train_config {
  sparse_optimizer { adagrad_optimizer { lr: 0.05 } constant_learning_rate {} }
  dense_optimizer { adam_optimizer { lr: 0.01 } constant_learning_rate {} }
  num_epochs: 1 save_checkpoints_epochs: 1 log_step_count_steps: 20 use_tensorboard: false
  process_timeout_secs: 60
}
eval_config {}
data_config {
  dataset_type: ParquetDataset fg_mode: FG_NONE num_workers: 1 eval_batch_size: 40 label_fields: "label"
}
feature_configs { id_feature { feature_name: "user" num_buckets: 60 embedding_dim: 8 } }
feature_configs { id_feature { feature_name: "item" num_buckets: 40 embedding_dim: 8 embedding_name: "items" } }
feature_configs { id_feature { feature_name: "last" num_buckets: 40 embedding_dim: 8 embedding_name: "items" } }
feature_configs { id_feature { feature_name: "city" num_buckets: 20 embedding_dim: 4 trainable: false } }
feature_configs { id_feature { feature_name: "words" num_buckets: 30 embedding_dim: 4 pooling: "mean" } }
feature_configs {
  id_feature { feature_name: "tags" num_buckets: 25 embedding_dim: 4 weighted: true separator: "\\003" }
}
feature_configs { raw_feature { feature_name: "price" } }
feature_configs {
  sequence_id_feature {
    feature_name: "seen" num_buckets: 40 embedding_dim: 8 embedding_name: "items" sequence_length: 6
  }
}
"""
ALL = '"user", "item", "last", "city", "words", "tags", "price"'
DEEPFM = f"""
feature_groups {{ group_name: "wide" group_type: WIDE feature_names: ["user", "item", "words"] }}
feature_groups {{ group_name: "fm" group_type: DEEP feature_names: ["user", "item", "last"] }}
feature_groups {{ group_name: "deep" group_type: DEEP feature_names: [{ALL}] }}
deepfm {{ deep {{ hidden_units: [8, 4] }} final {{ hidden_units: [4] }} wide_embedding_dim: 4 }}
losses {{ binary_cross_entropy {{}} }}
metrics {{ auc {{}} }} metrics {{ grouped_auc {{ grouping_key: "user" }} }} metrics {{ log_loss {{}} }}
train_metrics {{ auc {{}} }}
"""


def make_rows(count: int, seed: int) -> pa.Table:
    """Rows whose labels depend on their features; `row` numbers them."""
    rng = np.random.default_rng(seed)
    user, item, last = rng.integers(0, 60, count), rng.integers(0, 40, count), rng.integers(0, 40, count)
    price = rng.normal(size=count).astype(np.float32)
    odds = np.sin(user) + np.cos(item) + 0.5 * price
    label = (rng.random(count) < 1 / (1 + np.exp(-odds))).astype(np.int64)
    several = rng.integers(0, 4, count)
    tags = [
        "\x03".join(f"{t}:{w:.2f}" for t, w in zip(rng.integers(0, 25, n), rng.random(n))) for n in several
    ]
    return pa.table(
        {
            "row": np.arange(count),
            "user": user,
            "item": item,
            "last": last,
            "city": rng.integers(0, 20, count),
            "words": [rng.integers(0, 30, n).tolist() for n in rng.integers(0, 4, count)],
            "tags": tags,
            "price": price,
            "seen": [rng.integers(0, 40, n).tolist() for n in rng.integers(0, 7, count)],
            "label": label,
            "buy": label * rng.integers(0, 2, count),
            "weight": rng.random(count).astype(np.float32) * 3,
            "cost": rng.integers(1, 9, count),
        }
    )


def dealt(count: int, batch: int, ranks: int) -> np.ndarray[Any, Any]:
    """Rows in the order in which consecutive shares of them make up the batches of one process."""
    by_rank = np.arange(count).reshape(count // batch, ranks, batch // ranks)
    return by_rank.transpose(1, 0, 2).reshape(-1)


class Runs:
    """Configs, and what runs of them leave behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        table = make_rows(ROWS, 1)
        for ranks in (1, 2, 4):
            pq.write_table(table.take(dealt(ROWS, BATCH, ranks)), folder / f"train_{ranks}.parquet")
        pq.write_table(make_rows(EVAL_ROWS, 2), folder / "eval.parquet")
        self._models = 0

    def config(self, text: str = "", model: str = DEEPFM, ranks: int = 1) -> PipelineConfig:
        """A config whose batches over `ranks` ranks are those of one; `text` is merged over it."""
        config = text_format.Parse(BASE, PipelineConfig())
        text_format.Parse(model, config.model_config)
        config.data_config.batch_size = BATCH // ranks
        config.train_input_path = str(self.folder / f"train_{ranks}.parquet")
        config.eval_input_path = str(self.folder / "eval.parquet")
        config.MergeFrom(text_format.Parse(text, PipelineConfig(), allow_unknown_field=False))
        return config

    def new_dir(self) -> Path:
        """A model_dir of its own."""
        self._models += 1
        return self.folder / f"model_{self._models}"

    def job(self, config: PipelineConfig, model_dir: Path | None = None, **arguments: Any) -> dict[str, Any]:
        """What `ranks` takes for one run."""
        model_dir = model_dir or self.new_dir()
        path = self.folder / f"{model_dir.name}.config"
        save_config(config, path)
        return {"config": str(path), "model_dir": str(model_dir), **arguments}

    def local(self, config: PipelineConfig, **arguments: Any) -> tuple[Any, Path]:
        """One process with the local engine: the result and its model_dir."""
        folder = self.new_dir()
        return recgrad.train(config, model_dir=folder, **arguments), folder

    def ranks(self, count: int, jobs: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
        """What each rank has left of each job: [job][rank]."""
        number = self.new_dir().name
        ports = free_ports(len(jobs))
        listed = [{**job, "port": port} for job, port in zip(jobs, ports, strict=True)]
        (self.folder / f"{number}.jobs").write_text(json.dumps(listed))
        outs = [self.folder / f"{number}.rank_{rank}" for rank in range(count)]
        processes = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM), str(self.folder / f"{number}.jobs"), str(outs[rank])],
                env={**os.environ, **variables(rank, count)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(count)
        ]
        try:
            said = [process.communicate(timeout=TIMEOUT_SECS)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        codes = [process.returncode for process in processes]
        assert codes == [0] * count, "\n".join(said)
        left = [pickle.loads(out.read_bytes()) for out in outs]
        return [list(job) for job in zip(*left, strict=True)]


def variables(rank: int, count: int) -> dict[str, str]:
    """What torchrun sets; the port comes with each job."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
    }


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    pytest.importorskip("torchrec")
    return Runs(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="session")
def deepfm() -> str:
    """The model that `runs.config` has by default."""
    return DEEPFM


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.Popen[str]]:
    """Starts `recgrad …` in a process."""

    def start(*line: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "recgrad", *line],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start
