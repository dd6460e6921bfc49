"""Data that several ranks read as one process does, and runs of several ranks on it."""

from __future__ import annotations

import json
import os
import pickle
import random
import socket
import subprocess
import sys
import tempfile
import time
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
from recgrad.training.checkpoint import Snapshot, read_checkpoint
from recgrad.training.preflight import prepare_config

BATCH = 32
STEPS = 50
SHORT_STEPS = 20
ROWS = BATCH * STEPS
EVAL_ROWS = 333
TIMEOUT_SECS = 600  # nothing takes so long but a run that hangs
TOLERANCE = 2e-5
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
feature_configs {
  id_feature { feature_name: "item" num_buckets: 40 embedding_dim: 8 embedding_name: "items" }
}
feature_configs {
  id_feature { feature_name: "last" num_buckets: 40 embedding_dim: 8 embedding_name: "items" }
}
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

    def __init__(self, folder: Path, start_rank: Callable[..., Any]) -> None:
        self.folder = folder
        self._start_rank = start_rank
        table = make_rows(ROWS, 1)
        for ranks in (1, 2, 4):
            for name, rows in (("train", ROWS), ("short", BATCH * SHORT_STEPS)):
                pq.write_table(table.take(dealt(rows, BATCH, ranks)), folder / f"{name}_{ranks}.parquet")
        pq.write_table(make_rows(EVAL_ROWS, 2), folder / "eval.parquet")
        self._models = 0

    def config(
        self, text: str = "", model: str = DEEPFM, ranks: int = 1, data: str = "train"
    ) -> PipelineConfig:
        """A config whose batches over `ranks` ranks are those of one; `text` is merged over it.

        An epoch has 50 steps, of the data "short" 20.
        """
        config = text_format.Parse(BASE, PipelineConfig())
        text_format.Parse(model, config.model_config)
        config.data_config.batch_size = BATCH // ranks
        config.train_input_path = str(self.folder / f"{data}_{ranks}.parquet")
        config.eval_input_path = str(self.folder / "eval.parquet")
        text_format.Merge(text, config)
        if config.train_config.num_steps:
            config.train_config.ClearField("num_epochs")
            config.train_config.ClearField("save_checkpoints_epochs")
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

    def problems(self, config: PipelineConfig) -> list[str]:
        """What the check before a run of two ranks says."""
        report = prepare_config(config, model_dir=self.folder / "model", ranks=2)[1]
        return [str(problem) for problem in report.problems]

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
        outs = [self.folder / f"{number}_rank_{rank}.left" for rank in range(count)]
        processes = [
            self._start_rank(
                program(self.folder / f"{number}.jobs", out), variables(rank, count), out.with_suffix(".log")
            )
            for rank, out in enumerate(outs)
        ]
        deadline = time.monotonic() + TIMEOUT_SECS
        while any(process.exitcode is None for process in processes) and time.monotonic() < deadline:
            time.sleep(0.05)
        codes = [process.exitcode for process in processes]
        for process in processes:
            process.kill()
            process.join()
        said = [out.with_suffix(".log").read_text() for out in outs]
        assert codes == [0] * count, "\n".join(said)
        left = [pickle.loads(out.read_bytes()) for out in outs]
        return [list(job) for job in zip(*left, strict=True)]


def program(jobs: Path, out: Path) -> str:
    """What one rank of several runs is to do."""
    line = [str(PROGRAM), str(jobs), str(out)]
    return f"import runpy, sys; sys.argv = {line!r}; runpy.run_path(sys.argv[0], run_name='__main__')"


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
    """Ports that nobody listens on, below those that connections take while the jobs run."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            if port not in found and probe.connect_ex(("127.0.0.1", port)):
                found.append(port)
    return found


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, start_rank: Callable[..., Any]) -> Runs:
    pytest.importorskip("torchrec", exc_type=(ImportError, OSError))
    return Runs(tmp_path_factory.mktemp("ranks"), start_rank)


class Command:
    """`recgrad …` in a process of its own.

    Attributes:
        process: of the command, or of the launcher where it starts several.
        said: what it has written, known when it has ended.
    """

    def __init__(self, line: Sequence[str]) -> None:
        # A file, unlike a pipe, takes all that the processes say while nobody reads.
        self._out = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in wait()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "recgrad", *line],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=self._out,
            stderr=subprocess.STDOUT,
        )
        self.said = ""

    def wait(self, timeout: float = TIMEOUT_SECS) -> int:
        """The exit code; a process that does not end in time is killed."""
        try:
            return self.process.wait(timeout)
        finally:
            self.process.kill()
            self.process.wait()
            self._out.seek(0)
            self.said = self._out.read()
            self._out.close()


@pytest.fixture(scope="session")
def command() -> Callable[..., Command]:
    """Starts `recgrad …` in a process."""
    return lambda *line: Command(line)


def tables(snapshot: Snapshot) -> dict[str, dict[int, np.ndarray[Any, Any]]]:
    """Rows by table and number, put together from the pieces of all ranks."""
    found: dict[str, dict[int, Any]] = {}
    for table in snapshot.tables:
        rows = found.setdefault(table.name, {})
        for piece in table.pieces():
            rows.update(zip(piece.row_ids.tolist(), piece.weights, strict=True))
    return found


def _assert_same(one: Path | str, several: Path | str, step: int) -> None:
    a, b = (read_checkpoint(Path(folder) / f"model.ckpt-{step}") for folder in (one, several))
    assert list(a.tree["model"]) == list(b.tree["model"])
    for name, value in a.tree["model"].items():
        np.testing.assert_allclose(b.tree["model"][name], value, rtol=0, atol=TOLERANCE, err_msg=name)
    left, right = tables(a), tables(b)
    assert left.keys() == right.keys()
    for name, rows in left.items():
        assert rows.keys() == right[name].keys(), name
        for number, row in rows.items():
            np.testing.assert_allclose(right[name][number], row, rtol=0, atol=TOLERANCE, err_msg=name)


def _assert_agree(left: Sequence[dict[str, Any]]) -> None:
    """All ranks ended alike, with the same bits in every dense weight."""
    for rank in left:
        assert "error" not in rank, rank["error"]
        assert rank["dense"]
        for what in ("step", "metrics", "stopped", "rows"):
            assert repr(rank[what]) == repr(left[0][what])  # as text, for metrics may be NaN
        for name, value in rank["dense"].items():
            if name.endswith("num_batches_tracked"):
                continue  # of the rank's own batches, and without effect
            assert value.tobytes() == left[0]["dense"][name].tobytes(), name


@pytest.fixture(scope="session")
def assert_same() -> Callable[..., None]:
    """`assert_same(one, other, step)`: the checkpoints of two model_dirs are equal but for rounding."""
    return _assert_same


@pytest.fixture(scope="session")
def assert_agree() -> Callable[..., None]:
    return _assert_agree
