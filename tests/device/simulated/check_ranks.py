"""Two ranks whose dense halves are on devices train as two on CPUs do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from recgrad.cli.launch import launch
from recgrad.training.checkpoint import read_checkpoint

PROGRAM = Path(__file__).with_name("ranks.py")
CONFIG = """
train_config {{
  sparse_optimizer {{ sgd_optimizer {{ lr: 0.1 }} constant_learning_rate {{}} }}
  dense_optimizer {{ adam_optimizer {{ lr: 0.01 }} constant_learning_rate {{}} ema {{ decay: 0.9 }} }}
  num_steps: 6 save_checkpoints_steps: 6 use_tensorboard: false process_timeout_secs: 60
  grad_clipping {{ clipping_type: "norm" max_gradient: 0.1 enable_global_grad_clip: true }}
  grad_scaler {{ init_scale: 64 }}
}}
eval_config {{}}
train_input_path: "{folder}/train.parquet"
eval_input_path: "{folder}/train.parquet"
data_config {{
  dataset_type: ParquetDataset fg_mode: FG_NONE num_workers: 1 batch_size: 16
  label_fields: ["click", "buy"] sample_weight_fields: "weight"
}}
feature_configs {{ raw_feature {{ feature_name: "x" value_dim: 4 }} }}
feature_configs {{ raw_feature {{ feature_name: "z" }} }}
model_config {{
  feature_groups {{ group_name: "all" group_type: DEEP feature_names: ["x", "z"] }}
  mmoe {{
    num_expert: 2 expert_mlp {{ hidden_units: 6 use_bn: true }}
    task_towers {{
      tower_name: "ctr" label_name: "click" sample_weight_name: "weight" mlp {{ hidden_units: 4 }}
      losses {{ binary_cross_entropy {{}} }} metrics {{ auc {{}} }} train_metrics {{ auc {{}} }}
    }}
    task_towers {{
      tower_name: "cvr" label_name: "buy" task_space_indicator_label: "click" out_task_space_weight: 0.5
      losses {{ binary_cross_entropy {{}} }} metrics {{ log_loss {{}} }}
    }}
  }}
  use_pareto_loss_weight: true
}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    rows, x = 200, rng.normal(size=(200, 4)).astype(np.float32)
    columns = {
        "x": pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 4),
        "z": rng.normal(size=rows).astype(np.float32),
        "click": (x[:, 0] > 0).astype(np.int64),
        "buy": (x[:, 1] > 0.5).astype(np.int64),
        "weight": rng.uniform(0.1, 2, rows).astype(np.float32),
    }
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    path = tmp_path / "run.config"
    path.write_text(CONFIG.format(folder=tmp_path))
    return path


def test_two_ranks_train_on_devices_as_on_cpus(config: Path, tmp_path: Path, library: Path) -> None:
    found = {}
    for kind in ("cpu", "device"):
        folder = tmp_path / kind
        command = [sys.executable, str(PROGRAM), str(config), str(folder), kind, str(library)]
        assert launch(command, 2) == 0
        found[kind] = read_checkpoint(folder / "model.ckpt-6").tree
    for rank in found["device"]["ranks"]:
        assert rank["rng"].pop("simulated").numel() > 0
    assert_same(found["device"], found["cpu"])
    text = [(tmp_path / kind / "train_eval_result.txt").read_text() for kind in found]
    assert text[0] == text[1]


def assert_same(one: Any, other: Any, path: str = "") -> None:
    if isinstance(one, dict):
        assert list(one) == list(other), path
        for key, value in one.items():
            assert_same(value, other[key], f"{path}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for i, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{path}[{i}]")
    elif isinstance(one, (torch.Tensor, np.ndarray)):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), path
    else:
        assert one == other, path
