"""A small click dataset and a DeepFM config that trains on it in a second; processes that start quickly."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from recgrad.config import PipelineConfig, load_config
from recgrad.synth import write_synth

ROWS = 4_000


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clicks")
    write_synth(folder, ROWS, eval_rows=1_000, seed=5)
    return folder


@pytest.fixture
def fixed_threads() -> int:
    """How many threads torch computes with here: a command whose bits are compared is given as many."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads)  # as commands do, which also keeps MKL from choosing by itself
    return threads


def small_config(clicks: Path, folder: Path) -> PipelineConfig:
    """A small DeepFM over the clicks."""
    config = load_config(clicks / "deepfm.config")
    config.model_dir = str(folder / "model")
    config.data_config.batch_size = 256
    config.data_config.eval_batch_size = 512
    config.model_config.deepfm.deep.hidden_units[:] = [16, 8]
    config.model_config.deepfm.final.hidden_units[:] = [8]
    config.train_config.log_step_count_steps = 5
    config.train_config.use_tensorboard = False
    config.train_config.sparse_optimizer.constant_learning_rate.SetInParent()
    config.train_config.dense_optimizer.constant_learning_rate.SetInParent()
    for feature in config.feature_configs:
        if feature.HasField("id_feature"):
            feature.id_feature.embedding_dim = 4
    return config


@pytest.fixture(scope="session")
def make_config() -> Callable[[Path, Path], PipelineConfig]:
    """`make_config(clicks, folder)`, for fixtures that tests share."""
    return small_config


@pytest.fixture
def config(clicks: Path, tmp_path: Path) -> PipelineConfig:
    return small_config(clicks, tmp_path)


# What a rank imports takes it seconds: here one process imports it, and ranks are copies of that.
_IMPORTS = ["pytest", "recgrad.training.run"]
_PRELOAD = """
from contextlib import suppress
with suppress(ImportError, OSError):
    import recgrad.embedding.sharded.engine
"""
_RANK = """
import os, sys
os.environ.update(variables)
log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.dup2(log, 1)
os.dup2(log, 2)
exec(compile(program, "program", "exec"), {"__name__": "__main__"})
"""


def _start_rank(program: str, variables: Mapping[str, str], log: Path) -> BaseProcess:
    namespace = {"program": program, "variables": dict(variables), "log": str(log)}
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=exec, args=(_RANK, namespace), daemon=True)
    process.start()
    return process


@pytest.fixture(scope="session")
def start_rank(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., BaseProcess]:
    """`start_rank(program, variables, log)`: a process that runs a program's text and writes to a file."""
    # A FBGEMM that is not for this torch must not end the process that imports for all ranks.
    folder = tmp_path_factory.mktemp("preload")
    (folder / "preload_torchrec.py").write_text(_PRELOAD)
    sys.path.append(str(folder))
    multiprocessing.get_context("forkserver").set_forkserver_preload([*_IMPORTS, "preload_torchrec"])
    return _start_rank
