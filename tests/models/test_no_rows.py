"""A batch of no rows, as a process has where others have rows left, goes through every part of a model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from google.protobuf import text_format
from torch import nn

from recgrad.config.proto.feature_pb2 import AutoDisEmbedding, MLPEmbedding
from recgrad.config.proto.loss_pb2 import LossConfig
from recgrad.config.proto.metric_pb2 import MetricConfig, TrainMetricConfig
from recgrad.config.proto.model_pb2 import ModelConfig
from recgrad.config.proto.module_pb2 import MLP
from recgrad.data.batch import KeyedDense, KeyedJagged
from recgrad.losses import LOSSES, build_loss
from recgrad.metrics import METRICS, TRAIN_METRICS
from recgrad.models.base import MODELS
from recgrad.nn.encoders.base import ENCODERS, SequenceFields, build_encoder
from recgrad.training.task import Task

NAMES = [name for name, model in MODELS.items() if not model.learns_codes]
MODES = ["train", "eval", "inference"]
# What is set in every MLP of a model.
LAYERS = {
    "plain": "",
    "layer norm": "use_ln: true activation: 'nn.PReLU' dropout_ratio: 0.5",
    "batch norm": "use_bn: true",
    "dice": "activation: 'Dice'",
}
NO_TRAINING = ("batch norm", "dice")  # no rows have no statistics
CASES = [
    (layers, mode) for layers in LAYERS for mode in MODES if mode != "train" or layers not in NO_TRAINING
]


def no_rows(batch):
    def nothing(part):
        if part is None or isinstance(part, torch.Tensor):
            return None if part is None else part[:0]
        if isinstance(part, KeyedDense):
            return replace(part, values=part.values[:0])
        if isinstance(part, KeyedJagged):
            bags = (0,) * len(part.keys)
            return KeyedJagged(part.keys, part.values[:0], part.lengths[:0], bags, nothing(part.weights))
        if isinstance(part, dict):
            return {key: nothing(item) for key, item in part.items()}
        return replace(part, values=part.values[:0], lengths=part.lengths[:0])

    parts = ("dense", "sparse", "sequence_lengths", "sequence_sparse", "sequence_dense")
    targets = ("labels", "sample_weights", "keys")
    changed = {name: nothing(getattr(batch, name)) for name in (*parts, *targets)}
    return replace(batch, size=0, origin=None, negatives=None, **changed)


def set_layers(message, text):
    """Set every MLP inside a config."""
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        for one in value if isinstance(value, (list, tuple)) or hasattr(value, "add") else [value]:
            if isinstance(one, MLP):
                text_format.Merge(text, one)
            else:
                set_layers(one, text)


def check(model, batch, mode):
    """Outputs of no rows; a gradient of zeros for every weight, and no statistic touched."""
    model.train(mode == "train")
    before = {name: value.clone() for name, value in model.named_buffers()}
    with torch.inference_mode(mode == "inference"):
        outputs = model(batch)
    for name, value in outputs.items():
        assert name == "regularization" or value.shape[0] == 0
    if mode != "inference":
        (0 * torch.stack([value.sum() for value in outputs.values()]).sum()).backward()
        aside = mode == "eval" and any(task.training_only for task in model.tasks)
        for name, weight in model.named_parameters():
            if not name.startswith("engine.") and not (aside and weight.grad is None):
                assert weight.grad is not None, f"{name} has no gradient: processes would wait for it"
                assert not weight.grad.any(), name
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    return outputs


@pytest.mark.parametrize(("layers", "mode"), CASES)
@pytest.mark.parametrize("name", NAMES)
def test_models(name, layers, mode, build, batch_of, features, config_of):
    config = config_of(name)
    set_layers(config, LAYERS[layers])
    model = build(config, engine=None, double=False)
    assert any(isinstance(module, nn.BatchNorm1d) for module in model.modules()) == (layers in NO_TRAINING)
    check(model, no_rows(batch_of(features, 6, seed=1)), mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_variational_dropout(name, mode, build, batch_of, features, config_of):
    config = config_of(name)
    config.variational_dropout.regularization_lambda = 0.1
    check(build(config), no_rows(batch_of(features, 6, double=True)), mode)


@pytest.mark.parametrize("name", NAMES)
def test_rows_after_no_rows_are_what_they_would_be(name, build, batch):
    model = build(name).eval()
    expected = model(batch)
    check(model, no_rows(batch), "eval")
    assert all(torch.equal(value, expected[key]) for key, value in model(batch).items())


DSSM = """
feature_groups { group_name: "user" feature_names: ["a", "x"] group_type: DEEP }
feature_groups { group_name: "item" feature_names: ["b", "c"] group_type: DEEP }
dssm {
  user_tower { input: "user" mlp { hidden_units: 5 } }
  item_tower { input: "item" mlp { hidden_units: 5 } }
  output_dim: 4
}
losses { softmax_cross_entropy {} }
metrics { recall_at_k { top_k: 3 } }
"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("negatives", [None, 0, 3, "in batch"])
@pytest.mark.parametrize("similarity", ["COSINE", "INNER_PRODUCT", "EUCLID"])
def test_two_towers(similarity, negatives, mode, build, batch, batch_of, features):
    config = text_format.Parse(DSSM, ModelConfig())
    text_format.Merge(f"dssm {{ similarity: {similarity} }}", config)
    config.dssm.in_batch_negative = negatives == "in batch"
    sampled = isinstance(negatives, int)
    items = [spec for spec in features if spec.name in ("b", "c")]
    given = batch_of(items, negatives, double=True) if sampled else None
    model = build(config)
    empty = replace(no_rows(batch), negatives=given)
    outputs = check(model, empty, mode)
    assert outputs["logits"].shape == (0, 1 + negatives if sampled else 1)
    task = Task(model)
    task.update_metrics(outputs, empty)
    assert task.predictions(outputs)["similarity"].shape == (0,)
    assert task.losses(outputs, empty)["total"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_towers_of_domains(mode, build, batch, config_of):
    config = config_of("pepnet")
    config.pepnet.domain_input_name, config.pepnet.task_domain_num = "domain", 3
    empty = no_rows(replace(batch, labels={**batch.labels, "domain": torch.arange(6) % 3}))
    assert check(build(config), empty, mode)["logits_ctr"].shape == (0,)


GROUPS = """
feature_groups {
  group_name: "all" group_type: DEEP
  feature_names: ["a", "x", "u", "v", "w", "h__item", "h__price", "h__look"]
  sequence_groups { group_name: "h" feature_names: ["a", "h__item", "h__price", "h__look"] }
  sequence_encoders { pooling_encoder { input: "h" } }
  sequence_encoders { self_attention_encoder { input: "h" multihead_attn_dim: 4 num_heads: 2 } }
  sequence_encoders { din_encoder { input: "h" attn_mlp { hidden_units: 4 } } }
}
dcn_v1 { cross {} deep { hidden_units: 4 } final { hidden_units: 4 } }
losses { binary_cross_entropy {} }
"""


@pytest.mark.parametrize("mode", MODES)
def test_embedded_numbers_and_sequences_in_a_group(mode, build, batch_of, specs, features):
    autodis, linear = AutoDisEmbedding(num_channels=3), MLPEmbedding()
    embedded = [
        specs.dense("u", embedding_dim=4, dense_embedding=autodis),
        specs.dense("v", 2, embedding_dim=4, dense_embedding=linear),
        specs.dense("w", 1, embedding_dim=4, dense_embedding=linear),
        specs.dense("h__look", 2, embedding_dim=4, dense_embedding=linear, sequence=True, sequence_name="h"),
    ]
    every = [*features, *embedded]
    model = build(text_format.Parse(GROUPS, ModelConfig()), every)
    check(model, no_rows(batch_of(every, 6, double=True)), mode)


ATTENTION = [
    {"hidden_units": [6, 4], **layers}
    for layers in ({}, {"activation": "nn.Tanh"}, {"use_bn": True}, {"activation": "Dice"})
]
ENCODER_CASES = {name: [{}] for name in ENCODERS} | {
    "simple_attention": [{}, {"max_seq_length": 2}],
    "pooling_encoder": [{}, {"pooling_type": "sum", "max_seq_length": 2}],
    "self_attention_encoder": [
        {"multihead_attn_dim": 8, "num_heads": 2, "max_seq_length": limit, "dropout": 0.5} for limit in (0, 2)
    ],
    "din_encoder": [{"attn_mlp": mlp, "max_seq_length": limit} for limit in (0, 2) for mlp in ATTENTION],
    "multi_window_din_encoder": [{"attn_mlp": mlp, "windows_len": [1, 3]} for mlp in ATTENTION],
    "eta_encoder": [{}, {"max_seq_length": 2}],
    "sdim_encoder": [{}, {"max_seq_length": 2}],
    "sim_encoder": [{"query_feature": "kind", "sequence_feature": "h__kind"}],
}
FIELDS = SequenceFields({"kind": slice(0, 2)}, {"h__kind": slice(0, 2)}, {})


@pytest.mark.parametrize(
    ("name", "params", "mode"),
    [
        (name, params, mode)
        for name, cases in ENCODER_CASES.items()
        for params in cases
        for mode in MODES
        if mode != "train" or params.get("attn_mlp") not in ATTENTION[2:]  # no rows have no statistics
    ],
)
def test_sequence_encoders(name, params, mode):
    encoder = build_encoder(name, 4, 4, params, FIELDS).train(mode == "train")
    before = {key: value.clone() for key, value in encoder.named_buffers()}
    query, sequence = (torch.zeros(0, 4, requires_grad=True) for _ in range(2))
    with torch.inference_mode(mode == "inference"):
        out = encoder(query, sequence, torch.zeros(0, dtype=torch.int32))
    assert out.shape == (0, encoder.out_features)
    if mode != "inference":
        out.sum().backward()
        assert all(p.grad is not None and not p.grad.any() for p in encoder.parameters())
    assert all(torch.equal(value, before[key]) for key, value in encoder.named_buffers())


LOSS_TEXTS = {name: f"{name} {{}}" for name, loss in LOSSES.items() if not loss.takes_codes} | {
    "binary_cross_entropy": "binary_cross_entropy { label_smoothing: 0.1 }",
    "gbce_loss": "gbce_loss { num_items: 9 }",
    "jrc_loss": "jrc_loss { session_name: 'user' }",
    "softmax_cross_entropy": "softmax_cross_entropy { label_smoothing: 0.1 }",
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LOSS_TEXTS)
def test_losses_are_zero_and_so_are_their_gradients(name, weighted):
    loss = build_loss(text_format.Parse(LOSS_TEXTS[name], LossConfig()))
    shape = (0,) if loss.num_logits == 1 else (0, loss.num_logits or 3)
    logits = torch.zeros(shape, requires_grad=True)
    weights = torch.zeros(0) if weighted else None
    value = loss(logits, torch.zeros(0), weights=weights, session=torch.zeros(0, dtype=torch.int64))
    assert value == 0
    value.backward()
    assert logits.grad.shape == shape
    assert loss.predict(logits).shape[0] == 0


# By what a model predicts.
METRIC_TEXTS = {
    "binary": [
        "auc {}",
        "auc { exact: true }",
        "accuracy {}",
        "calibration {}",
        "grouped_auc { grouping_key: 'user' }",
        "grouped_xauc { grouping_key: 'user' }",
        "grouped_xauc { grouping_key: 'user' exact: true }",
        "hit_rate_at_k { grouping_key: 'user' }",
        "log_loss {}",
        "mean_absolute_error {}",
        "mean_squared_error {}",
        "mrr { grouping_key: 'user' }",
        "ndcg_at_k { grouping_key: 'user' }",
        "normalized_entropy {}",
        "recall_at_k { grouping_key: 'user' top_k: 2 }",
        "xauc {}",
        "xauc { exact: true }",
        "xauc { in_batch: true }",
    ],
    "classes": [
        "accuracy { top_k: 2 }",
        "log_loss {}",
        "multiclass_auc {}",
        "multiclass_auc { exact: true }",
    ],
    "retrieval": ["hit_rate_at_k {}", "mrr {}", "ndcg_at_k {}", "recall_at_k { top_k: 3 }"],
}
TRAIN_METRIC_TEXTS = {
    "binary": [
        "auc {}",
        "accuracy {}",
        "calibration {}",
        "log_loss {}",
        "mean_absolute_error {}",
        "mean_squared_error {}",
        "normalized_entropy {}",
        "xauc { in_batch: true }",
    ],
    "classes": ["accuracy { top_k: 2 }", "log_loss {}"],
    "retrieval": ["recall_at_k { top_k: 3 }"],
}


for texts, registry in ((METRIC_TEXTS, METRICS), (TRAIN_METRIC_TEXTS, TRAIN_METRICS)):
    named = {text.split()[0] for some in texts.values() for text in some}
    texts["binary"] += [f"{name} {{}}" for name in registry if name not in named]


def task_of(kind, build, config_of, metrics=(), train_metrics=()):
    config = text_format.Parse(DSSM, ModelConfig()) if kind == "retrieval" else config_of("deepfm")
    del config.metrics[:]
    config.metrics.extend(text_format.Parse(text, MetricConfig()) for text in metrics)
    config.train_metrics.extend(text_format.Parse(text, TrainMetricConfig()) for text in train_metrics)
    if kind == "retrieval":
        config.dssm.in_batch_negative = True
    if kind == "classes":
        config.num_class = 3
        config.losses[0].softmax_cross_entropy.SetInParent()
    return Task(build(config))


@pytest.mark.parametrize("kind", ["binary", "classes", "retrieval"])
def test_losses_and_predictions_of_a_task(kind, build, batch, config_of):
    task, empty = task_of(kind, build, config_of), no_rows(batch)
    outputs = task(empty)
    losses = task.losses(outputs, empty)
    assert len(losses) == 2
    assert all(value == 0 for value in losses.values())
    losses["total"].backward()
    assert not any(weight.grad.any() for _, weight in task.model.dense_named_parameters())
    (values,) = task.predictions(outputs).values()
    assert values.shape == ((0, 3) if kind == "classes" else (0,))


def values_of(task, training, batches):
    """The metrics over these batches."""
    for batch in batches:
        (task.update_train_metrics if training else task.update_metrics)(task(batch), batch)
    return task.train_metrics() if training else task.compute_metrics()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", ["binary", "classes", "retrieval"])
def test_metrics_of_a_task_stay_as_they_are(kind, training, build, batch, config_of):
    texts = (TRAIN_METRIC_TEXTS if training else METRIC_TEXTS)[kind]
    some = replace(batch, keys={"user": torch.tensor([0, 0, 0, 1, 1, 1])})
    if kind != "retrieval":
        labels = [0, 1, 2, 0, 1, 2] if kind == "classes" else [0, 1, 0, 1, 0, 1]
        some = replace(some, labels={**batch.labels, "click": torch.tensor(labels)})
    empty = no_rows(some)
    with torch.inference_mode():
        for text in texts:
            given = {"train_metrics" if training else "metrics": [text]}
            expected = values_of(task_of(kind, build, config_of, **given).eval(), training, [some])
            found = values_of(task_of(kind, build, config_of, **given).eval(), training, [empty, some, empty])
            assert expected, text
            assert all(value == value for value in expected.values()), text
            assert found == expected, text
