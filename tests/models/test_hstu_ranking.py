# ruff: noqa: E501
"""dlrm_hstu and ultra_hstu from files to lists of predictions, and against their formulas in float64."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import chain

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
from recgrad.models.build import build_model
from recgrad.models.hstu_ranking import CANDIDATES
from recgrad.models.inputs import Inputs
from recgrad.models.targets import find_targets
from recgrad.nn.jagged import Segments
from recgrad.nn.jagged_rows import reverse_rows
from recgrad.nn.stu.inputs import HSTUInput
from recgrad.training.run import load_trained
from recgrad.training.task import Task

ITEMS, USERS = 6, 20

FEATURES = """
feature_configs { id_feature { feature_name: "user" expression: "user:user" num_buckets: 20 embedding_dim: 4 } }
feature_configs { id_feature { feature_name: "city" expression: "user:city" num_buckets: 5 embedding_dim: 4 } }
feature_configs { sequence_feature { sequence_name: "seen" sequence_length: 100
  features { id_feature { feature_name: "item" expression: "item:item" num_buckets: 6 embedding_dim: 8 embedding_name: "item" } }
  features { raw_feature { feature_name: "action" expression: "item:action" } }
  features { raw_feature { feature_name: "watched" expression: "item:watched" } }
  features { raw_feature { feature_name: "time" expression: "item:time" } } } }
feature_configs { sequence_feature { sequence_name: "shown" sequence_length: 100
  features { id_feature { feature_name: "item" expression: "item:item" num_buckets: 6 embedding_dim: 8 embedding_name: "item" } }
  features { raw_feature { feature_name: "time" expression: "item:time" } } } }
"""
GROUPS = """
  feature_groups { group_name: "contextual" feature_names: ["user", "city"] group_type: CONTEXT_TYPE }
  feature_groups { group_name: "uih" feature_names: ["seen__item"] group_type: JAGGED_SEQUENCE }
  feature_groups { group_name: "uih_action" feature_names: ["seen__action"] group_type: JAGGED_SEQUENCE }
  feature_groups { group_name: "uih_watchtime" feature_names: ["seen__watched"] group_type: JAGGED_SEQUENCE }
  feature_groups { group_name: "uih_timestamp" feature_names: ["seen__time"] group_type: JAGGED_SEQUENCE }
  feature_groups { group_name: "candidate" feature_names: ["shown__item"] group_type: JAGGED_SEQUENCE }
  feature_groups { group_name: "candidate_timestamp" feature_names: ["shown__time"] group_type: JAGGED_SEQUENCE }
"""
HSTU = """hstu {
      stu { embedding_dim: 16 num_heads: 2 hidden_dim: 8 attention_dim: 8 output_dropout_ratio: 0.1 }
      input_dropout_ratio: 0.1
      attn_num_layers: 2
      positional_encoder { num_position_buckets: 64 num_time_buckets: 64 use_time_encoding: true }
      input_preprocessor { PREPROCESSOR {
        action_encoder { simple_action_encoder { action_embedding_dim: 4 action_weights: [1, 2]
          watchtime_to_action_thresholds: 30 watchtime_to_action_weights: 4 } }
        action_mlp { simple_mlp { hidden_dim: 16 } }
        content_encoder { slice_content_encoder {} }
        content_mlp { parameterized_mlp { hidden_dim: 8 } }
      } }
      output_postprocessor { layernorm_postprocessor {} }
    }"""
TASKS = """fusion_mtl_tower {
      mlp { hidden_units: 16 }
      task_configs { task_name: "like" label_name: "acts" task_bitmask: 2 losses { binary_cross_entropy {} }
        metrics { auc {} } metrics { grouped_auc { grouping_key: "user" } } }
      task_configs { task_name: "watched" label_name: "watch_time" losses { l2_loss {} } weight: 0.01
        metrics { mean_absolute_error {} } }
    }"""
CONFIG = """
train_input_path: "DIR/train.parquet"
eval_input_path: "DIR/valid.parquet"
model_dir: "DIR/model"
train_config {
  sparse_optimizer { adagrad_optimizer { lr: 0.1 } constant_learning_rate {} }
  dense_optimizer { adam_optimizer { lr: 0.005 } constant_learning_rate {} }
  num_epochs: 5
  use_tensorboard: false
}
data_config { batch_size: 20 dataset_type: ParquetDataset fg_mode: FG_NORMAL label_fields: ["acts", "watch_time"] shuffle: true }
FEATURES
model_config {
  GROUPS
  kernel: TRITON
  dlrm_hstu {
    HSTU
    TASKS
    max_seq_len: 40
    item_embedding_hidden_dim: 16
  }
}
"""


def rows(count, seed):
    """A candidate is liked if its kind is that of the history, mostly."""
    rng = np.random.default_rng(seed)
    found = {name: [] for name in ("user", "city", "acts", "watch_time")}
    found |= {f"seen__{name}": [] for name in ("item", "action", "watched", "time")}
    found |= {f"shown__{name}": [] for name in ("item", "time")}
    for _ in range(count):
        n, t = int(rng.integers(1, 9)), int(rng.integers(1, 7))
        kind = int(rng.integers(0, 2))
        items, actions = 2 * rng.integers(0, ITEMS // 2, n) + kind, rng.integers(0, 4, n)
        times = 1_700_000_000 + np.sort(rng.integers(0, 10_000, n + t))
        shown = rng.integers(0, ITEMS, t)
        liked = (shown % 2 == kind) ^ (rng.random(t) < 0.05)
        found["user"].append(int(rng.integers(0, USERS)))
        found["city"].append(int(rng.integers(0, 5)))
        found["seen__item"].append(items.tolist())
        found["seen__action"].append(actions.tolist())
        found["seen__watched"].append(rng.integers(0, 60, n).tolist())
        found["seen__time"].append(times[:n].tolist())
        found["shown__item"].append(shown.tolist())
        found["shown__time"].append(times[n:].tolist())
        found["acts"].append((1 + 2 * liked).tolist())
        found["watch_time"].append((10.0 * liked).tolist())
    return found


def config_text(folder, **changes):
    text = CONFIG
    words = {"FEATURES": FEATURES, "GROUPS": GROUPS, "TASKS": TASKS, "HSTU": HSTU, "CONTEXT_TYPE": "DEEP"}
    for word, meaning in ({**words, "PREPROCESSOR": "contextual_preprocessor"} | changes).items():
        text = text.replace(word, meaning)
    return text.replace("DIR", str(folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hstu")
    for name, count, seed in (("train", 1000, 0), ("valid", 200, 1)):
        pq.write_table(pa.table(rows(count, seed)), path / f"{name}.parquet")
    return path


@pytest.fixture(scope="module")
def trained(folder):
    path = folder / "hstu.config"
    path.write_text(config_text(folder))
    return recgrad.train(path)


def test_it_learns_from_lists_of_labels(trained):
    assert trained.metrics["auc_like"] > 0.85
    assert trained.metrics["grouped_auc_like"] > 0.8


def test_predictions_are_lists(folder, trained):
    target = folder / "predictions.parquet"
    recgrad.predict(
        folder / "hstu.config", input_path=str(folder / "valid.parquet"), output_path=target,
        carry_columns=["user", "shown__item"],
    )  # fmt: skip
    table = pq.read_table(target)
    assert pa.types.is_list(table.schema.field("probs_like").type)
    given = pq.read_table(folder / "valid.parquet")
    for name in ("probs_like", "y_watched"):
        lengths = [len(values) for values in table[name].to_pylist()]
        assert lengths == [len(values) for values in given["shown__item"].to_pylist()]
    liked = np.array(list(chain(*given["acts"].to_pylist()))) == 3
    scores = np.array(list(chain(*table["probs_like"].to_pylist())))
    assert scores[liked].mean() > scores[~liked].mean() + 0.3
    with pytest.raises(RecgradError, match="rows have lists of predictions, which CSV cannot hold"):
        recgrad.predict(
            folder / "hstu.config", input_path=str(folder / "valid.parquet"), output_path=folder / "p.csv"
        )


def built(folder, text=None, **changes):
    """A model of the config, untrained, in float64, and a batch of the validation rows."""
    path = folder / "built.config"
    path.write_text(text or config_text(folder, **changes))
    config = load_config(path)
    features = features_of(config)
    model = build_model(config.model_config, [feature.spec for feature in features], seed=3)
    with torch.no_grad():
        for parameter in model.dense_named_parameters():
            parameter[1].add_(
                torch.randn(parameter[1].shape, generator=torch.Generator().manual_seed(1)) * 0.1
            )
    loader = build_loader(
        config, config.eval_input_path, features=features, targets=find_targets(config), training=False
    )
    return model.eval(), next(iter(loader.epoch(0)))


def test_the_tower_fuses_users_and_items(folder):
    """Beside the HSTU, which has tests of its own, token by token in float64."""
    model, batch = built(folder)
    model.double()
    inputs = model.groups(model.groups.gather(batch, model.engine))
    inputs = Inputs(
        {name: value.double() for name, value in inputs.rows.items()},
        {name: replace(s, query=s.query.double(), sequence=s.sequence.double()) for name, s in inputs.sequences.items()},
        inputs.times,
    )  # fmt: skip
    outputs = model.predict(inputs)
    history, candidates = model.histories[0].events(inputs), CANDIDATES.events(inputs)
    users = model.hstu[0](HSTUInput(history, candidates, inputs["contextual"])).values.detach().numpy()
    p = {name: value.detach().numpy() for name, value in model.state_dict().items() if "engine" not in name}
    logits = []
    for user, x in zip(users, candidates.values.detach().numpy(), strict=True):
        z = model.fusion(torch.from_numpy(user * simple_mlp(p, "items", x))).detach().numpy()
        logits.append(p["output.weight"] @ z + p["output.bias"])
    expected = np.array(logits)
    np.testing.assert_allclose(outputs["logits_like"].detach().numpy(), expected[:, 0], rtol=1e-10)
    np.testing.assert_allclose(outputs["logits_watched"].detach().numpy(), expected[:, 1], rtol=1e-10)
    assert history.times.dtype == torch.float64
    assert int(history.times[0]) == pq.read_table(folder / "valid.parquet")["seen__time"][0].as_py()[0]


def simple_mlp(p, at, x):
    """LN(W₂·swishLN(W₁·x + b₁) + b₂)."""
    h = p[f"{at}.layers.0.weight"] @ x + p[f"{at}.layers.0.bias"]
    gate = norm(h, p[f"{at}.layers.1.norm.weight"], p[f"{at}.layers.1.norm.bias"])
    out = p[f"{at}.layers.2.weight"] @ (h / (1 + np.exp(-gate))) + p[f"{at}.layers.2.bias"]
    return norm(out, p[f"{at}.layers.3.weight"], p[f"{at}.layers.3.bias"])


def norm(x, weight, bias):
    return (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean() + 1e-5) * weight + bias


def test_one_channel_without_a_name_is_dlrm_hstu(folder):
    one, batch = built(folder)
    other, _ = built(folder, config_text(folder).replace("dlrm_hstu", "ultra_hstu"))
    for name, value in one(batch).items():
        assert torch.equal(value, other(batch)[name])


def test_channels_have_histories_of_their_own(folder):
    more = (
        GROUPS
        + """
  feature_groups { group_name: "again" feature_names: ["seen__item"] group_type: JAGGED_SEQUENCE }
  feature_groups { group_name: "again_timestamp" feature_names: ["seen__time"] group_type: JAGGED_SEQUENCE }
"""
    )
    plain = HSTU.partition("action_encoder")[0] + HSTU[HSTU.index("content_encoder") :]
    both = f"""hstu {{ name: "uih" {HSTU.removeprefix("hstu {")} hstu {{ name: "again" {plain.removeprefix("hstu {")}"""
    text = config_text(folder, GROUPS=more, HSTU=both).replace("dlrm_hstu", "ultra_hstu")
    model, batch = built(folder, text)
    assert [events.names for events in model.histories] == [
        ("uih", "uih_timestamp", "uih_action", "uih_watchtime"),
        ("again", "again_timestamp"),
    ]
    assert model.items.layers[2].out_features == 32
    assert model(batch)["logits_like"].isfinite().all()
    same = text.replace('hstu { name: "again"', 'hstu { name: "uih"').replace(more.removeprefix(GROUPS), "")
    with pytest.raises(ConfigError, match="hstu must have names of their own where there are several"):
        built(folder, same)


def test_a_sequence_group_of_rows_is_contextual(folder):
    (one, batch), (other, _) = built(folder), built(folder, CONTEXT_TYPE="SEQUENCE")
    for name, value in one(batch).items():
        assert torch.equal(value, other(batch)[name])
    other = FEATURES.replace('"city" expression: "user:city" num_buckets: 5 embedding_dim: 4', '"city" expression: "user:city" num_buckets: 5 embedding_dim: 3')  # fmt: skip
    with pytest.raises(ConfigError, match="or set concat_contextual_features"):
        built(folder, FEATURES=other)
    text = config_text(folder, FEATURES=other).replace(
        "max_seq_len: 40", "max_seq_len: 40 concat_contextual_features: true"
    )
    assert built(folder, text)[0].hstu[0].preprocessor.contextual == 1


def test_newest_first_gives_what_oldest_first_does(folder, tmp_path):
    turned = rows(200, 1)
    for name, values in turned.items():
        if name not in ("user", "city"):
            turned[name] = [value[::-1] for value in values]
    pq.write_table(pa.table(turned), tmp_path / "valid.parquet")
    model, batch = built(folder)
    text = config_text(folder).replace(
        "max_seq_len: 40", "max_seq_len: 40 sequence_timestamp_is_ascending: false"
    )
    other, reverse = built(folder, text.replace(f"{folder}/valid", f"{tmp_path}/valid"))
    outputs, found = model(batch), other(reverse)
    segments = Segments.from_lengths(outputs["lengths"], len(outputs["rows"]))
    back = reverse_rows(found["logits_like"], segments)
    torch.testing.assert_close(back, outputs["logits_like"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("acts", lambda row: row[:-1], "label acts: 1 labels for 2 candidates (row 7 of"),
        ("acts", lambda row: None, "row 7 of valid.parquet"),
        ("seen__time", lambda row: row[:-1], "row 7 of valid.parquet"),
        ("shown__time", lambda row: [*row, 5], "row 7 of valid.parquet"),
        (
            "shown__item",
            lambda row: [99, *row[1:]],
            "id 99 is outside num_buckets 6 (column 'shown__item', row 7 of",
        ),
        (
            "acts",
            lambda row: row[0],
            "and the model asks for a value for each candidate of a row; write a list",
        ),
    ],
)
def test_odd_rows_are_named(folder, tmp_path, column, change, message):
    given = rows(20, 5)
    for name in given:
        if name.startswith("shown__") or name in ("acts", "watch_time"):
            given[name][7] = [given[name][7][0]] * 2
    every = message.endswith("write a list")
    given[column] = [change(row) if i == 7 or every else row for i, row in enumerate(given[column])]
    pq.write_table(pa.table(given), tmp_path / "valid.parquet")
    text = config_text(folder).replace(f"{folder}/valid", f"{tmp_path}/valid")

    def run():
        model, batch = built(folder, text)
        Task(model).losses(model(batch), batch)

    with pytest.raises(DataError) as caught:
        run()
    assert message in str(caught.value)
    assert column in str(caught.value) or "group" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("preprocessor", ["contextual_preprocessor", "contextual_interleave_preprocessor"])
def test_resumed_is_as_if_it_had_not_stopped(folder, tmp_path, preprocessor):
    text = config_text(folder, PREPROCESSOR=preprocessor).replace("train.parquet", "valid.parquet")
    states = {}
    for name, steps in (("whole", [6]), ("parts", [3, 6])):
        for count in steps:
            path = tmp_path / f"{name}.config"
            changed = text.replace("num_epochs: 5", f"num_steps: {count}").replace(
                str(folder / "model"), str(tmp_path / name)
            )
            path.write_text(changed)
            recgrad.train(path, continue_train=count == 6 and name == "parts")
        states[name] = load_trained(path, None, device=torch.device("cpu")).task.model
    one, other = states["whole"], states["parts"]
    assert all(torch.equal(v, other.state_dict()[k]) for k, v in one.state_dict().items())
    batch = built(folder)[1]
    with torch.no_grad():
        assert torch.equal(one.eval()(batch)["logits_like"], other.eval()(batch)["logits_like"])


@pytest.mark.slow
def test_two_ranks_learn_what_one_does(folder, tmp_path):
    """Rows have different numbers of candidates, and every candidate weighs the same."""
    changes = {
        "_dropout_ratio: 0.1": "_dropout_ratio: 0",
        "parameterized_mlp": "simple_mlp",
        "adam_optimizer { lr: 0.005 }": "sgd_optimizer { lr: 0.05 }",
        "adagrad_optimizer { lr: 0.1 }": "sgd_optimizer { lr: 0.05 }",
        "num_epochs: 5": "num_steps: 5",
        "shuffle: true": "shuffle: false",
    }
    text, table, found = config_text(folder), pq.read_table(folder / "valid.parquet"), {}
    for old, new in changes.items():
        text = text.replace(old, new)
    for ranks in (1, 2):
        # A rank reads a consecutive share of the rows; both together have the batches of one.
        order = np.arange(200).reshape(10, ranks, 20 // ranks).transpose(1, 0, 2).ravel()
        pq.write_table(table.take(order), tmp_path / f"{ranks}.parquet")
        path = tmp_path / f"{ranks}.config"
        own = text.replace(f"{folder}/train.parquet", f"{tmp_path}/{ranks}.parquet")
        own = own.replace("batch_size: 20", f"batch_size: {20 // ranks}")
        path.write_text(own.replace(f"{folder}/model", f"{tmp_path}/{ranks}"))
        command = [sys.executable, "-m", "recgrad", "train", str(path), "--nproc", str(ranks)]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        found[ranks] = load_trained(path, None, device=torch.device("cpu")).task.model.state_dict()
    for name, value in found[1].items():
        if "engine" not in name:
            torch.testing.assert_close(value, found[2][name], rtol=1e-4, atol=1e-5, msg=name)
