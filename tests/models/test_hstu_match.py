# ruff: noqa: E501
"""hstu_match from files to vectors, and its comparisons against their formulas in float64."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import recgrad
from recgrad.config.load import load_config
from recgrad.data.features.build import features_of
from recgrad.data.loader import build_loader
from recgrad.errors import ConfigError, DataError, RecgradError
from recgrad.export.towers import TrainedTowers
from recgrad.models.build import build_model
from recgrad.models.targets import find_targets
from recgrad.training.run import load_trained
from recgrad.training.task import Task

ITEMS = 12
SAMPLER = """negative_sampler {
    input_path: "DIR/items.parquet" num_sample: 5 attr_fields: "item" item_id_field: "ITEM_FIELD" exclude: OWN_ITEM
  }"""
CONFIG = """
train_input_path: "DIR/train.parquet"
eval_input_path: "DIR/valid.parquet"
model_dir: "DIR/model"
train_config {
  sparse_optimizer { adagrad_optimizer { lr: 0.1 } constant_learning_rate {} }
  dense_optimizer { adam_optimizer { lr: 0.005 } constant_learning_rate {} }
  num_epochs: 8
  use_tensorboard: false
}
eval_config { catalogue { item_input_path: "DIR/items.parquet" item_id_field: "ITEM_FIELD" top_k: 6 } }
data_config { batch_size: 20 dataset_type: ParquetDataset fg_mode: FG_NORMAL label_fields: "clicked" shuffle: true
  force_base_data_group: true
  SAMPLER }
feature_configs { id_feature { feature_name: "city" expression: "user:city" num_buckets: 5 embedding_dim: 4 } }
feature_configs { raw_feature { feature_name: "now" expression: "user:now" data_type: "FP64" } }
feature_configs { sequence_feature { sequence_name: "seen" sequence_length: 100
  features { id_feature { feature_name: "item" expression: "item:item" num_buckets: 12 embedding_dim: 8 embedding_name: "item" } }
  features { raw_feature { feature_name: "action" expression: "item:action" } }
  features { raw_feature { feature_name: "time" expression: "item:time" } } } }
ITEM_FEATURE
model_config {
  feature_groups { group_name: "contextual" feature_names: "city" group_type: DEEP }
  feature_groups { group_name: "query_time" feature_names: "now" group_type: DEEP }
  feature_groups { group_name: "uih" feature_names: "seen__item" group_type: JAGGED_SEQUENCE }
  feature_groups { group_name: "uih_action" feature_names: "seen__action" group_type: JAGGED_SEQUENCE }
  feature_groups { group_name: "uih_timestamp" feature_names: "seen__time" group_type: JAGGED_SEQUENCE }
  feature_groups { group_name: "candidate" feature_names: "ITEM_FIELD" group_type: ITEM_GROUP }
  hstu_match {
    user_tower { input: "uih" max_seq_len: 40 hstu {
      stu { embedding_dim: 16 num_heads: 2 hidden_dim: 8 attention_dim: 8 output_dropout_ratio: 0.1 }
      input_dropout_ratio: 0.1
      attn_num_layers: 2
      positional_encoder { num_position_buckets: 64 num_time_buckets: 64 use_time_encoding: true }
      input_preprocessor { uih_preprocessor {
        action_encoder { simple_action_encoder { action_embedding_dim: 4 action_weights: [1, 2] } }
        action_mlp { simple_mlp { hidden_dim: 16 } } } }
      output_postprocessor { layernorm_postprocessor {} }
    } }
    item_tower { input: "candidate" mlp { hidden_units: 16 } }
    output_dim: 8
    similarity: COSINE
    temperature: 0.2
  }
  losses { softmax_cross_entropy {} }
  metrics { recall_at_k { top_k: 1 } }
}
"""
SEVERAL = {
    "ITEM_FIELD": "next__item",
    "ITEM_GROUP": "JAGGED_SEQUENCE",
    "ITEM_FEATURE": """feature_configs { sequence_feature { sequence_name: "next" sequence_length: 100
  features { id_feature { feature_name: "item" expression: "item:item" num_buckets: 12 embedding_dim: 8 embedding_name: "item" } } } }""",
}
ONE = {
    "ITEM_FIELD": "item",
    "ITEM_GROUP": "DEEP",
    "ITEM_FEATURE": 'feature_configs { id_feature { feature_name: "item" expression: "item:item" num_buckets: 12 embedding_dim: 8 embedding_name: "item" } }',
}


def rows(count, seed):
    """What comes next is of the kind that the history is of: even or odd."""
    rng = np.random.default_rng(seed)
    names = ("city", "now", "clicked", "item", "seen__item", "seen__action", "seen__time", "next__item")
    found = {name: [] for name in names}
    for _ in range(count):
        n, kind = int(rng.integers(1, 8)), int(rng.integers(0, 2))
        times = 1_700_000_000 + np.sort(rng.integers(0, 10_000, n + 1))
        own = (2 * rng.choice(ITEMS // 2, int(rng.integers(1, 4)), replace=False) + kind).tolist()
        found["city"].append(int(rng.integers(0, 5)))
        found["now"].append(int(times[n]))
        found["clicked"].append(1)
        found["item"].append(own[0])
        found["next__item"].append(own)
        found["seen__item"].append((2 * rng.integers(0, ITEMS // 2, n) + kind).tolist())
        found["seen__action"].append(rng.integers(0, 4, n).tolist())
        found["seen__time"].append(times[:n].tolist())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("match")
    for name, count, seed in (("train", 600, 0), ("valid", 100, 1)):
        pq.write_table(pa.table(rows(count, seed)), path / f"{name}.parquet")
    items = list(range(ITEMS))
    pq.write_table(
        pa.table({"id": items, "weight": [1.0] * ITEMS, "item": items, "next__item": items}),
        path / "items.parquet",
    )
    return path


def config_text(folder, kind=SEVERAL, sampler=SAMPLER, **changes):
    text = CONFIG.replace("SAMPLER", sampler)
    for word, meaning in (kind | changes).items():
        text = text.replace(word, meaning)
    return text.replace("DIR", str(folder))


def written(folder, name, text):
    path = folder / f"{name}.config"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def trained(folder):
    """A model of several items a row, and one of one."""
    found = {}
    for name, kind in (("several", SEVERAL), ("one", ONE)):
        path = written(
            folder, name, config_text(folder, kind).replace(f"{folder}/model", f"{folder}/model_{name}")
        )
        steps = {} if name == "several" else {"train_config.num_epochs": 1}  # learning is seen in the first
        found[name] = path, recgrad.train(path, edit_config_json=json.dumps(steps))
    return found


def test_it_learns_what_comes_next(trained):
    # Six of twelve items are of the kind.
    metrics = trained["several"][1].metrics
    assert metrics["catalogue_hit_rate@6"] > 0.8
    assert "recall@1" in metrics


def built(folder, text, training=True):
    path = written(folder, "built", text)
    config = load_config(path)
    features = features_of(config)
    model = build_model(config.model_config, [feature.spec for feature in features], seed=3).eval()
    with torch.no_grad():
        for _, parameter in model.dense_named_parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    loader = build_loader(
        config, config.train_input_path, features=features, targets=find_targets(config), training=training
    )
    return model, next(iter(loader.epoch(0)))


HARD = """hard_negative_sampler {
    user_input_path: "DIR/users.parquet" item_input_path: "DIR/items.parquet" hard_neg_edge_input_path: "DIR/edges.parquet"
    num_sample: 5 num_hard_sample: 2 attr_fields: "item" item_id_field: "next__item" user_id_field: "city" exclude: OWN_ITEM
  }"""


@pytest.mark.parametrize("sampler", [SAMPLER, HARD])
def test_every_own_item_is_compared_with_the_negatives(folder, sampler):
    users = list(range(5))
    pq.write_table(pa.table({"id": users, "weight": [1.0] * 5}), folder / "users.parquet")
    edges = {"src_id": [0, 0, 1, 3], "dst_id": [1, 2, 5, 7], "weight": [1.0] * 4}
    pq.write_table(pa.table(edges), folder / "edges.parquet")
    model, batch = built(folder, config_text(folder, sampler=sampler))
    with torch.no_grad():
        outputs = model(batch)
        users = model.embed(batch, "user").double().numpy()
        own = batch.sequence_sparse["next__item"].values
        table = model.embed(_items(model, range(ITEMS)), "item").double().numpy()
    drawn = batch.negatives.sequence_sparse["next__item"].values
    comparison = batch.comparison
    shared = len(drawn) - (0 if comparison.hard_rows is None else len(comparison.hard_rows))
    excluded = set(map(tuple, comparison.excluded.tolist()))
    lengths = batch.sequence_lengths["next__item"].tolist()
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    assert outputs["rows"].tolist() == row_of.tolist()
    assert outputs["lengths"].tolist() == lengths
    assert max(lengths) > 1
    for i, (row, item) in enumerate(zip(row_of, own.tolist(), strict=True)):
        expected = [users[row] @ table[item] / 0.2]
        for j in range(shared):
            score = users[row] @ table[int(drawn[j])] / 0.2
            expected.append(-np.inf if (row, j) in excluded else score)
        got = outputs["logits"][i].double().numpy()
        np.testing.assert_allclose(got[: len(expected)], expected, rtol=1e-4, atol=1e-5)
        hard = []
        if comparison.hard_rows is not None:
            at = np.flatnonzero(comparison.hard_rows.numpy() == row) + shared
            hard = [users[row] @ table[int(drawn[j])] / 0.2 for j in at]
        found = got[len(expected) :]
        np.testing.assert_allclose(found[np.isfinite(found)], hard, rtol=1e-4, atol=1e-5)
    loss = Task(model).losses(outputs, batch)["total"]
    logits = outputs["logits"].double().numpy()
    reference = np.mean(np.log(np.exp(logits - logits[:, :1]).sum(1)))
    assert float(loss) == pytest.approx(reference, rel=1e-5)


def _items(model, ids):
    """A batch of the item group alone, one a row."""
    from recgrad.data.batch import Batch, KeyedDense, KeyedJagged

    ids = torch.tensor(list(ids))
    ones = torch.ones(len(ids), dtype=torch.int32)
    empty = torch.zeros(0, dtype=torch.int64)
    none = KeyedJagged((), empty, empty.int(), ())
    jagged = KeyedJagged(("next__item",), ids, ones, (len(ids),), single=True)
    dense = KeyedDense((), (), torch.zeros(len(ids), 0))
    return Batch(len(ids), dense, none, {"next__item": ones}, jagged)


def test_the_user_is_the_last_token(folder):
    """Beside the HSTU, which has tests of its own, token by token in float64."""
    model, batch = built(folder, config_text(folder))
    kept = {}
    model.hstu.register_forward_hook(lambda _module, _given, out: kept.update(tokens=out))
    with torch.no_grad():
        users = model.embed(batch, "user").double().numpy()
    tokens = kept["tokens"]
    weight, bias = (p.detach().double().numpy() for p in model.user_output.parameters())
    end = 0
    for row, n in enumerate(batch.sequence_lengths["seen__item"].tolist()):
        end += 1 + n  # a contextual token, then the history
        u = weight @ tokens.values[end - 1].double().numpy() + bias
        np.testing.assert_allclose(users[row], u / np.linalg.norm(u), rtol=1e-4, atol=1e-6)
    # The time of the request counts: it is the anchor of times.
    later = batch.precise["now"] + 1e6
    moved = type(batch)(**{**batch.__dict__, "precise": {"now": later}})
    with torch.no_grad():
        assert not np.allclose(model.embed(moved, "user").numpy(), users, atol=1e-3)


def test_newest_first_gives_what_oldest_first_does(folder, tmp_path):
    turned = rows(600, 0)
    for name in ("seen__item", "seen__action", "seen__time"):
        turned[name] = [value[::-1] for value in turned[name]]
    pq.write_table(pa.table(turned), tmp_path / "train.parquet")
    text = config_text(folder)
    one, batch = built(folder, text)
    text = text.replace("output_dim: 8", "output_dim: 8 sequence_timestamp_is_ascending: false")
    other, reverse = built(folder, text.replace(f"{folder}/train", f"{tmp_path}/train"))
    with torch.no_grad():
        torch.testing.assert_close(one.embed(batch, "user"), other.embed(reverse, "user"))


def test_predictions_are_lists_where_rows_have_several_items(folder, trained):
    for name, is_list in (("several", True), ("one", False)):
        target = folder / f"{name}.parquet"
        recgrad.predict(trained[name][0], input_path=str(folder / "valid.parquet"), output_path=target)
        found = pq.read_table(target)["similarity"]
        assert pa.types.is_list(found.type) == is_list
    given = pq.read_table(folder / "valid.parquet")["next__item"].to_pylist()
    found = pq.read_table(folder / "several.parquet")["similarity"].to_pylist()
    assert [len(values) for values in found] == [len(values) for values in given]


def test_settings_and_rows_without_meaning_are_refused(folder, trained, tmp_path):
    text = config_text(folder)
    with pytest.raises(ConfigError, match="in_batch_negative is not for hstu_match"):
        built(folder, text.replace("output_dim: 8", "output_dim: 8 in_batch_negative: true"))
    with pytest.raises(ConfigError, match="towers must end equally wide when output_dim is 0, got 16 "):
        built(
            folder,
            text.replace("output_dim: 8", "output_dim: 0").replace("hidden_units: 16", "hidden_units: 5"),
        )
    other = (
        "contextual_preprocessor { content_encoder { slice_content_encoder {} } content_mlp { simple_mlp {} }"
    )
    with pytest.raises(ConfigError, match="input_preprocessor must be uih_preprocessor for this model"):
        built(folder, text.replace("uih_preprocessor {", other))
    given = rows(20, 5)
    given["seen__time"][7] = given["seen__time"][7][:-1]
    pq.write_table(pa.table(given), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"seen__time: has .* row 7 of train\.parquet"):
        built(folder, text.replace(f"{folder}/train", f"{tmp_path}/train").replace("shuffle: true", ""))
    pq.write_table(pa.table({"item": [0, 1], "next__item": [[0], [1, 2]]}), tmp_path / "items.parquet")
    with pytest.raises(RecgradError, match="row 1 has 2 items"):
        TrainedTowers(folder / "model_several").embed(pq.read_table(tmp_path / "items.parquet"), "item")


@pytest.mark.slow
def test_resumed_is_as_if_it_had_not_stopped(folder, tmp_path):
    models = {}
    for name, steps in (("whole", [6]), ("parts", [3, 6])):
        for count in steps:
            text = config_text(folder).replace("num_epochs: 8", f"num_steps: {count}")
            path = written(tmp_path, name, text.replace(f"{folder}/model", f"{tmp_path}/{name}"))
            recgrad.train(path, continue_train=count == 6 and name == "parts")
        models[name] = load_trained(path, None, device=torch.device("cpu")).task.model
    one, other = models["whole"].state_dict(), models["parts"].state_dict()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.slow
def test_two_ranks_learn_what_one_does(folder, tmp_path):
    """Rows have different numbers of items, and every item weighs the same; negatives are all items."""
    sampler = (
        """catalogue_sampler { input_path: "DIR/items.parquet" attr_fields: "item" item_id_field: "item" }"""
    )
    changes = {
        "_dropout_ratio: 0.1": "_dropout_ratio: 0",
        "adam_optimizer { lr: 0.005 }": "sgd_optimizer { lr: 0.05 }",
        "adagrad_optimizer { lr: 0.1 }": "sgd_optimizer { lr: 0.05 }",
        "num_epochs: 8": "num_steps: 5",
        "shuffle: true": "shuffle: false",
        "softmax_cross_entropy": "full_softmax",
        "metrics { recall_at_k { top_k: 1 } }": "",
    }
    text, table, found = config_text(folder, ONE, sampler), pq.read_table(folder / "valid.parquet"), {}
    for old, new in changes.items():
        text = text.replace(old, new)
    for ranks in (1, 2):
        order = np.arange(100).reshape(5, ranks, 20 // ranks).transpose(1, 0, 2).ravel()
        pq.write_table(table.take(order), tmp_path / f"{ranks}.parquet")
        own = text.replace(f"{folder}/train.parquet", f"{tmp_path}/{ranks}.parquet")
        own = own.replace("batch_size: 20", f"batch_size: {20 // ranks}")
        path = written(tmp_path, str(ranks), own.replace(f"{folder}/model", f"{tmp_path}/{ranks}"))
        command = [sys.executable, "-m", "recgrad", "train", str(path), "--nproc", str(ranks)]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        found[ranks] = load_trained(path, None, device=torch.device("cpu")).task.model.state_dict()
    for name, value in found[1].items():
        if "engine" not in name:
            torch.testing.assert_close(value, found[2][name], rtol=1e-4, atol=1e-5, msg=name)
