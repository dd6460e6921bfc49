from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import text_format

from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data import Loader, build_features, build_loader
from recgrad.models.targets import find_targets

FEATURES = """
feature_configs { raw_feature { feature_name: "price" expression: "item:price" } }
feature_configs { id_feature { feature_name: "cat" expression: "item:cat"
  embedding_dim: 4 num_buckets: 100 } }
feature_configs {
  id_feature {
    feature_name: "tags" expression: "item:tags" embedding_dim: 4 hash_bucket_size: 50 separator: "|"
  }
}
feature_configs {
  sequence_id_feature {
    feature_name: "clicks" expression: "user:clicks" embedding_dim: 4 num_buckets: 100 sequence_length: 10
  }
}
"""


def pipeline_config(data: str, features: str = FEATURES, model: str = "") -> PipelineConfig:
    """A config around a data_config body; the model asks for a binary label unless told otherwise."""
    model = model or "losses { binary_cross_entropy {} }"
    kind = "" if "dataset_type" in data else "dataset_type: ParquetDataset"
    text = f"""
    train_input_path: "" eval_input_path: "" model_dir: ""
    data_config {{ {kind} {data} }}
    {features}
    model_config {{ {model} }}
    """
    return text_format.Parse(text, PipelineConfig())


def rows_table(count: int, seed: int = 0, start: int = 0) -> pa.Table:
    """Rows with a unique `id`, features of every shape, nulls, and a label."""
    rng = np.random.default_rng([seed, start])
    ids = np.arange(start, start + count)
    lengths = rng.integers(0, 5, count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "label": pa.array(rng.integers(0, 2, count), pa.int64()),
            "weight": pa.array(rng.random(count), pa.float32()),
            "user": pa.array([f"u{v}" for v in rng.integers(0, 9, count)]),
            "price": pa.array(rng.random(count), pa.float32(), mask=rng.random(count) < 0.1),
            "cat": pa.array(rng.integers(0, 100, count), pa.int64(), mask=rng.random(count) < 0.1),
            "tags": pa.array(["|".join(map(str, rng.integers(0, 30, n))) for n in rng.integers(0, 4, count)]),
            "clicks": pa.array([rng.integers(0, 100, n).tolist() for n in lengths], pa.list_(pa.int64())),
            "cost": pa.array(rng.integers(1, 20, count), pa.int64()),
        }
    )


@pytest.fixture
def make_config() -> Callable[..., PipelineConfig]:
    return pipeline_config


@pytest.fixture
def make_rows() -> Callable[..., pa.Table]:
    return rows_table


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., str]:
    """Write rows as parquet files `part-i.parquet` of given sizes; returns the folder."""

    def write(sizes: list[int], row_group_size: int = 50, folder: str = "data", **columns: Any) -> str:
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        start = 0
        for i, size in enumerate(sizes):
            table = rows_table(size, start=start)
            for name, values in columns.items():
                table = table.set_column(table.schema.get_field_index(name), name, values.slice(start, size))
            pq.write_table(table, path / f"part-{i}.parquet", row_group_size=row_group_size)
            start += size
        return str(path)

    return write


@pytest.fixture
def open_loader() -> Callable[..., Loader]:
    """A loader that carries `id`."""

    def build(path: str, data: str, *, features: str = FEATURES, model: str = "", **kwargs: Any) -> Loader:
        config = pipeline_config(data, features, model)
        if "fg_mode" not in data:
            config.data_config.fg_mode = 3
        mode = {1: "FG_NONE", 2: "FG_NORMAL", 3: "FG_DAG", 4: "FG_BUCKETIZE"}[config.data_config.fg_mode]
        built = build_features(
            config.feature_configs, fg_mode=mode, multival_sep=config.data_config.fg_encoded_multival_sep
        )
        kwargs = {"training": True, "carry_columns": ("id",), **kwargs}
        kwargs.setdefault("targets", find_targets(config))
        config.train_config.num_steps = int(kwargs.pop("endless", False))
        return build_loader(config, path, features=built, **kwargs)

    return build


@pytest.fixture
def shared_data() -> Path:
    """The real data sets beside the repository."""
    path = Path(__file__).resolve().parents[2] / "../shared/data"
    if not path.exists():
        pytest.skip("needs the real data sets in ../shared/data")
    return path
