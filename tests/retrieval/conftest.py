"""A small shop: users, items with a category and a price, what was bought; and a two-tower model of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import text_format

import recgrad
from recgrad.config import PipelineConfig

ROOT = Path(__file__).resolve().parents[2]
USERS, ITEMS = 40, 90
CONFIG = """
train_input_path: "{folder}/train.parquet"
eval_input_path: "{folder}/test.parquet"
model_dir: "{folder}/model"
train_config {{
  sparse_optimizer {{ adagrad_optimizer {{ lr: 0.05 }} constant_learning_rate {{}} }}
  dense_optimizer {{ adam_optimizer {{ lr: 0.01 }} constant_learning_rate {{}} }}
  num_steps: 20 use_tensorboard: false
}}
eval_config {{}}
data_config {{
  batch_size: 128 dataset_type: ParquetDataset fg_mode: FG_NORMAL num_workers: 0
}}
feature_configs {{ id_feature {{ feature_name: "user_id" expression: "user:user_id"
  num_buckets: 100 embedding_dim: 8 }} }}
feature_configs {{ id_feature {{ feature_name: "country" expression: "user:country"
  hash_bucket_size: 20 embedding_dim: 4 }} }}
feature_configs {{ id_feature {{ feature_name: "item_id" expression: "item:item_id"
  hash_bucket_size: 500 embedding_dim: 8 }} }}
feature_configs {{ id_feature {{ feature_name: "category" expression: "item:category"
  hash_bucket_size: 20 embedding_dim: 4 }} }}
feature_configs {{ raw_feature {{ feature_name: "price" expression: "item:price" }} }}
model_config {{
  feature_groups {{ group_name: "user" group_type: DEEP feature_names: ["user_id", "country"] }}
  feature_groups {{ group_name: "item" group_type: DEEP feature_names: ["item_id", "category", "price"] }}
  dssm {{
    user_tower {{ input: "user" mlp {{ hidden_units: [16] }} }}
    item_tower {{ input: "item" mlp {{ hidden_units: [16] }} }}
    output_dim: 6 similarity: COSINE temperature: 0.2 in_batch_negative: true
  }}
  losses {{ softmax_cross_entropy {{}} }} metrics {{ recall_at_k {{ top_k: 5 }} }}
}}
"""


@dataclass(frozen=True)
class Shop:
    """The files of the shop and the tables that they hold."""

    folder: Path
    users: pa.Table
    items: pa.Table
    train: pa.Table
    test: pa.Table

    def config(self, **edits: object) -> PipelineConfig:
        """The config of its model."""
        parsed = text_format.Parse(CONFIG.format(folder=self.folder), PipelineConfig())
        return recgrad.edit_config(parsed, edits) if edits else parsed


def bought(rng: np.random.Generator, rows: int, users: pa.Table, items: pa.Table) -> pa.Table:
    """Users buy cheap items of their own category more often."""
    user = rng.integers(0, USERS, rows)
    item = np.where(
        rng.random(rows) < 0.6, (user % 6) * 15 + rng.integers(0, 15, rows), rng.integers(0, ITEMS, rows)
    )
    chosen = items.take(pa.array(item))
    return pa.table(
        {
            "user_id": users["user_id"].take(pa.array(user)),
            "country": users["country"].take(pa.array(user)),
            **{name: chosen[name] for name in chosen.column_names},
        }
    )


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(0)
    users = pa.table({"user_id": np.arange(USERS), "country": [f"c{i % 6}" for i in range(USERS)]})
    items = pa.table(
        {
            "item_id": [f"i{number}" for number in range(ITEMS)],
            "category": [f"k{number // 15}" for number in range(ITEMS)],
            "price": rng.random(ITEMS).astype(np.float32),
        }
    )
    tables = {
        "users": users,
        "items": items,
        "train": bought(rng, 1500, users, items),
        "test": bought(rng, 150, users, items),
    }
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
    return Shop(folder, **tables)


@pytest.fixture(scope="session")
def model_dir(shop: Shop) -> Path:
    """A trained model of the shop."""
    return recgrad.train(shop.config()).model_dir


@pytest.fixture(scope="session")
def vectors(shop: Shop, model_dir: Path) -> Callable[[str, pa.Table], np.ndarray]:
    """Vectors of a tower by the model itself, in float64."""
    import torch

    from recgrad.data.batch import Batch
    from recgrad.data.encoder import FeatureEncoder
    from recgrad.data.faults import Faults
    from recgrad.training.run import load_trained

    trained = load_trained(shop.config(), None, device=torch.device("cpu"))
    task, features = trained.task, trained.features

    def embed(tower: str, table: pa.Table) -> np.ndarray:
        names = task.model.groups.features[tower]
        encoder = FeatureEncoder([feature for feature in features if feature.name in names])
        batch = Batch.of(encoder.encode_table(table, Faults()))
        with torch.inference_mode():
            return getattr(task.model, f"{tower}_embedding")(batch).double().numpy()

    return embed


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples, beside shared data of 30 users."""
    folder = tmp_path_factory.mktemp("gowalla")
    rng = np.random.default_rng(0)
    source = folder / "shared" / "data" / "gowalla"
    source.mkdir(parents=True)
    for name, most in (("train.txt", 12), ("valid.txt", 3), ("test.txt", 4)):
        lines = [" ".join(map(str, [user, *rng.choice(2000, most, replace=False)])) for user in range(30)]
        (source / name).write_text("\n".join(lines))
    project = folder / "project"
    project.mkdir()
    shutil.copytree(ROOT / "examples", project / "examples")
    return project
