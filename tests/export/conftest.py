"""A small model of every feature kind, trained a little, and bundles of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import text_format

from recgrad.config import PipelineConfig
from recgrad.data.features.build import features_of
from recgrad.export.bundle import encoded_batch, write_bundle
from recgrad.training.assembly import build_task
from recgrad.training.run import Trained

CONFIGS = Path(__file__).parents[1] / "models" / "configs"
FEATURES = """
feature_configs { id_feature { feature_name: "a" num_buckets: 1100 embedding_dim: 4 embedding_name: "a" } }
feature_configs { raw_feature { feature_name: "x" } }
feature_configs { id_feature { feature_name: "b" num_buckets: 11 embedding_dim: 4 pooling: "mean" } }
feature_configs { raw_feature { feature_name: "y" value_dim: 2 } }
feature_configs { id_feature { feature_name: "c" num_buckets: 1100000 embedding_dim: 4 } }
feature_configs { sequence_feature { sequence_name: "h" sequence_length: 9 sequence_delim: ";"
  features { id_feature { feature_name: "item" num_buckets: 1100 embedding_dim: 4 embedding_name: "a" } }
  features { raw_feature { feature_name: "price" } }
} }
data_config { fg_mode: FG_NONE label_fields: ["click", "buy"] fg_encoded_multival_sep: "|" }
"""


def rows(count, seed=0):
    """Rows of the features; bags and sequences of every length, also of none."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, count)
    return pa.table(
        {
            "a": rng.integers(0, 1100, count),
            "x": rng.normal(size=count),
            "b": pa.array(
                [rng.integers(0, 11, n).tolist() for n in rng.integers(0, 4, count)], pa.list_(pa.int64())
            ),
            "y": pa.array(rng.normal(size=(count, 2)).tolist(), pa.list_(pa.float64())),
            "c": rng.integers(0, 1100000, count),
            "h__item": pa.array([rng.integers(0, 1100, n).tolist() for n in lengths], pa.list_(pa.int64())),
            "h__price": pa.array([rng.normal(size=n).tolist() for n in lengths], pa.list_(pa.float64())),
        }
    )


def trained(name, extra=""):
    """A model whose tables have some trained rows; the others are drawn."""
    config = text_format.Parse(FEATURES + extra, PipelineConfig())
    text_format.Parse((CONFIGS / f"{name}.config").read_text(), config.model_config)
    config.train_config.seed = 7
    features = features_of(config)
    task = build_task(config, features).eval()
    rng = np.random.default_rng(1)
    for table in () if task.model.engine is None else task.model.engine.tables.values():
        some = np.unique(rng.integers(0, table.spec.num_rows, 40))
        values = rng.normal(size=(len(some), table.spec.dim)).astype(np.float32)
        values[0] = 0  # a trained row of zeros is not an untrained one
        table.write(some, values)
    if task.model.learns_codes:  # from the rows that it reads
        task.train()(encoded_batch(features, rows(64)))
        task.model.settle()
        task.eval()
    return Trained(config, task, features, 3, {"auc": 0.75})


@pytest.fixture(scope="session")
def _one_registry():
    """The exporter reads its thousand operators for every program; once will do here."""
    registration = pytest.importorskip("torch.onnx._internal.exporter._registration")
    registry = registration.ONNXRegistry
    known = registry.__dict__["from_torchlib"]
    registry.from_torchlib = staticmethod(cache(registry.from_torchlib))
    yield
    registry.from_torchlib = known


@pytest.fixture(scope="session")
def make_rows():
    return rows


@pytest.fixture(scope="session")
def make_trained():
    return trained


@pytest.fixture(scope="session")
def model():
    """A model with a sequence, bags, numbers and a table that is mostly untrained."""
    return trained("multi_tower_din")


@pytest.fixture(scope="session")
def bundle(model, tmp_path_factory, _one_registry):
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("bundles") / "bundle"
    write_bundle(folder, model, rows(6), precision="FP32")
    return folder
