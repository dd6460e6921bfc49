# ruff: noqa: E501
"""Bundles of the schema's HSTU models, with all their parts, score as the models do."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from recgrad.config.load import load_config
from recgrad.data.features.build import features_of
from recgrad.errors import DataError
from recgrad.export.bundle import encoded_batch, write_bundle
from recgrad.serving.scorer import Scorer
from recgrad.training.assembly import build_task
from recgrad.training.run import Trained

pytestmark = pytest.mark.slow


def neighbour(name: str) -> ModuleType:
    """Another file of tests, for its configs and rows."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


match, ranking = neighbour("test_hstu_match"), neighbour("test_hstu_ranking")

CHANNELS = (
    ranking.GROUPS
    + """
  feature_groups { group_name: "again" feature_names: ["seen__action"] group_type: JAGGED_SEQUENCE }
  feature_groups { group_name: "again_timestamp" feature_names: ["seen__time"] group_type: JAGGED_SEQUENCE }
"""
)
PLAIN = ranking.HSTU.partition("action_encoder")[0] + ranking.HSTU[ranking.HSTU.index("content_encoder") :]
TIMES_OF_DAY = "timestamp_layernorm_postprocessor { time_duration_period_units: [3600, 86400] time_duration_units_per_period: [24, 7] }"


def ranking_text(folder, name):
    """Configs that have every part of an HSTU between them."""
    if name == "turns":  # items and actions in turns, histories cut between layers, newest first
        text = ranking.config_text(folder, PREPROCESSOR="contextual_interleave_preprocessor")
        text = text.replace(
            "attn_num_layers: 2",
            "attn_num_layers: 3 attn_truncation_split_layer: 1 attn_truncation_tail_len: 5",
        )
        text = text.replace("layernorm_postprocessor {}", TIMES_OF_DAY)
        return text.replace("max_seq_len: 40", "max_seq_len: 40 sequence_timestamp_is_ascending: false")
    first = ranking.HSTU.replace("attention_dim: 8", "attention_dim: 8 max_attn_len: 3 use_group_norm: true")
    other = PLAIN.replace("attention_dim: 8", "attention_dim: 8 sla_k1: 2 sla_k2: 1")
    other = other.replace("slice_content_encoder", "pad_content_encoder").replace(
        "layernorm_post", "l2norm_post"
    )
    other = other.replace("use_time_encoding: true", 'use_time_encoding: true time_bucket_fn: "log"')
    both = "".join(
        f'hstu {{ name: "{name}" {text.removeprefix("hstu {")}'
        for name, text in (("uih", first), ("again", other))
    )
    text = ranking.config_text(folder, GROUPS=CHANNELS, HSTU=both, PREPROCESSOR="contextual_preprocessor")
    return text.replace("dlrm_hstu", "ultra_hstu").replace("attn_num_layers: 2", "attn_num_layers: 1")


def trained(folder, text):
    """A model that is not trained, whose weights are not small by chance."""
    path = folder / "exported.config"
    path.write_text(text)
    config = load_config(path)
    features = features_of(config)
    task = build_task(config, features).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in task.model.dense_named_parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return Trained(config, task, features, 3, {})


def compared(folder, text, table):
    """The bundle's scores of rows, against the model's."""
    pytest.importorskip("onnxruntime")
    model = trained(folder, text)
    columns = sorted({column for feature in model.features for column in feature.columns})
    table = table.select(columns)
    manifest = write_bundle(folder / "bundle", model, table.slice(0, 8), precision="FP32")
    assert [program.note for program in manifest.programs.values() if program.kind != "onnx"] == []
    scorer = Scorer.load(folder / "bundle")
    for rows in (table.slice(0, 1), table.slice(1, 2), table):
        with torch.no_grad():
            outputs = model.task(encoded_batch(model.features, rows))
        for name, values in model.task.predictions(outputs).items():
            found = scorer.score(rows)[name]
            assert found.lengths.tolist() == outputs["lengths"].tolist()
            np.testing.assert_allclose(found.values, values.numpy(), rtol=0, atol=5e-6)
    return scorer, model


@pytest.fixture(scope="module", autouse=True)
def _one_registry():
    """The exporter reads its thousand operators for every program; once will do here."""
    registry = pytest.importorskip("torch.onnx._internal.exporter._registration").ONNXRegistry
    known = registry.__dict__["from_torchlib"]
    registry.from_torchlib = staticmethod(cache(registry.from_torchlib))
    yield
    registry.from_torchlib = known


@pytest.mark.parametrize("name", ["turns", "channels"])
def test_lists_of_candidates(tmp_path, name):
    compared(tmp_path, ranking_text(tmp_path, name), pa.table(ranking.rows(60, 3)))


def test_a_row_without_history_and_one_without_candidates(tmp_path):
    given = ranking.rows(6, 4)
    for column in given:
        if column.startswith("seen__"):
            given[column][1] = []
        if column.startswith("shown__"):
            given[column][4] = []
    text = ranking.config_text(tmp_path).replace("fg_mode: FG_NORMAL", "fg_mode: FG_NONE")
    scorer, _ = compared(tmp_path, text, pa.table(given))
    assert scorer.score(pa.table(given).slice(4, 1))["probs_like"].tolist() == [[]]


def test_items_that_came_next(tmp_path):
    for name in ("train", "valid"):
        pq.write_table(pa.table(match.rows(20, 1)), tmp_path / f"{name}.parquet")
    items = list(range(match.ITEMS))
    pq.write_table(
        pa.table({"id": items, "weight": [1.0] * 12, "next__item": items}), tmp_path / "items.parquet"
    )
    table = pa.table(match.rows(40, 2))
    scorer, model = compared(tmp_path, match.config_text(tmp_path), table)
    with torch.no_grad():
        users = model.task.model.embed(encoded_batch(model.features, table), "user")
    np.testing.assert_allclose(scorer.embed(table, "user"), users.numpy(), rtol=0, atol=5e-6)
    one = table.set_column(
        table.schema.get_field_index("next__item"), "next__item", pa.array([[i % 12] for i in range(40)])
    )
    with torch.no_grad():
        vectors = model.task.model.embed(encoded_batch(model.features, one), "item")
    np.testing.assert_allclose(scorer.embed(one, "item"), vectors.numpy(), rtol=0, atol=5e-6)
    with pytest.raises(DataError, match="write one a row for the item tower"):
        scorer.embed(table, "item")
