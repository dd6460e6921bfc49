"""A small click dataset and a DeepFM config that trains on it in a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from recgrad.config import PipelineConfig, load_config
from recgrad.data.synth import write_synth

ROWS = 4_000


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clicks")
    write_synth(folder, ROWS, eval_rows=1_000, seed=5)
    return folder


@pytest.fixture
def config(clicks: Path, tmp_path: Path) -> PipelineConfig:
    config = load_config(clicks / "deepfm.config")
    config.model_dir = str(tmp_path / "model")
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
