"""Models, encoders and losses on a device give what they give on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from google.protobuf import text_format
from torch import Tensor

from recgrad.config.proto.loss_pb2 import LossConfig
from recgrad.config.proto.train_pb2 import TrainConfig
from recgrad.data.features.spec import FeatureSpec
from recgrad.embedding.build import build_sparse_optimizer
from recgrad.errors import DataError
from recgrad.losses import build_loss
from recgrad.models.base import MODELS
from recgrad.models.build import build_model
from recgrad.nn.encoders.base import ENCODERS, SequenceFields, build_encoder
from recgrad.optim.from_config import build_updater
from recgrad.optim.roles import parameter_roles
from recgrad.training.task import Task

STEPS = 3
# Where the CPU has a kernel of its own (layer norm, DIN's attention), sums run in another order on a device.
ROUNDED = {"rtol": 1e-5, "atol": 1e-6}
EXACT = {"rtol": 0.0, "atol": 0.0}
ROUNDED_MODELS = (
    "dbmtl", "dlrm_hstu", "hstu_match", "mask_net", "multi_tower_din", "rank_mixer", "sasrec", "ultra_hstu",
    "wukong",
)  # fmt: skip
# Their updates are linear in the gradients, so that rounding stays rounding.
TRAIN = """
sparse_optimizer { sgd_optimizer { lr: 0.1 } constant_learning_rate {} }
dense_optimizer { sgd_optimizer { lr: 0.1 momentum: 0.9 } constant_learning_rate {} }
"""
ATTENTION = {"attn_mlp": {"hidden_units": [4]}}
ENCODER_PARAMS: dict[str, dict[str, Any]] = {
    "din_encoder": ATTENTION,
    "eta_encoder": {"top_k": 2, "num_hashes": 8, "multihead_attn_dim": 6, "num_heads": 2},
    "multi_window_din_encoder": {**ATTENTION, "windows_len": [1, 2]},
    "pooling_encoder": {},
    "self_attention_encoder": {"multihead_attn_dim": 8, "num_heads": 2},
    "sdim_encoder": {"num_hashes": 12, "hash_width": 2},
    "sim_encoder": {
        "query_feature": "kind",
        "sequence_feature": "h__kind",
        "top_k": 2,
        "multihead_attn_dim": 6,
    },
    "simple_attention": {},
}
# The first two columns are the item's kind, in one table.
FIELDS = SequenceFields(
    {"kind": slice(0, 2), "x": slice(2, 6)}, {"h__kind": slice(0, 2)}, {"kind": "k", "h__kind": "k"}
)
LOSSES = {
    "binary_cross_entropy { label_smoothing: 0.1 }": 1,
    "binary_focal_loss {}": 1,
    "l2_loss {}": 1,
    "softmax_cross_entropy {}": 3,
    'jrc_loss { session_name: "s" }': 2,
    "bpr_loss {}": 3,
    "cosine_contrastive_loss {}": 3,
    "gbce_loss { num_items: 9 }": 3,
    "full_softmax {}": 3,
}


class Run:
    """A few updates of a model, and all that came out of them."""

    def __init__(self, cases: Any, config: Any, device: torch.device, train: str = TRAIN) -> None:
        settings = text_format.Parse(train, TrainConfig())
        model = build_model(config, cases.FEATURES, seed=3, label_fields=cases.LABELS)
        self.task = Task(model)
        self.task.place(device)
        self.task.train()
        self.sparse = None
        if model.engine is not None:
            self.sparse = build_sparse_optimizer(model.engine, settings.sparse_optimizer)
        self.updater = build_updater(
            settings,
            model.dense_named_parameters(),
            self.sparse,
            roles=parameter_roles(model),
            device_type=device.type,
            track_grad_norm=True,
        )
        self.device = device
        self.seen: list[Tensor] = []

    def train(self, batches: list[Any]) -> Run:
        for batch in batches:
            with self.updater.autocast():
                outputs = self.task(batch)
                losses = self.task.losses(outputs, batch)
            assert {value.device for value in (*outputs.values(), *losses.values())} == {self.device}
            self.updater.backward(losses["total"])
            self.task.update_train_metrics(outputs, batch)
            if not self.task.model.learns_codes:  # those are measured by the codes that follow from training
                self.task.update_metrics(outputs, batch)
            assert self.updater.step()
            self.seen += [value.detach().cpu() for value in (*outputs.values(), *losses.values())]
        if self.task.model.learns_codes:
            self._measure_codes(batches[-1])
        return self

    def _measure_codes(self, batch: Any) -> None:
        self.task.model.settle()
        self.task.eval()
        with torch.no_grad():
            outputs = self.task(batch)
        self.task.update_metrics(outputs, batch)
        self.seen += [value.cpu() for value in outputs.values()]

    def results(self) -> Iterator[tuple[str, Tensor]]:
        yield from ((f"output {i}", value) for i, value in enumerate(self.seen))
        for name, value in self.task.model.state_dict().items():
            assert value.device == self.device, name
            yield name, value.cpu()
        engine: Any = self.task.model.engine
        for name in () if engine is None else engine.tables:
            rows, weights = engine.export_table(name)
            yield f"rows of {name}", torch.from_numpy(rows)
            yield f"table {name}", torch.from_numpy(weights)
        for name, value in {**self.task.compute_metrics(), **self.task.train_metrics()}.items():
            yield name, torch.tensor(value)


def batches_of(cases: Any, **options: Any) -> list[Any]:
    return [
        cases.make_batch(cases.FEATURES, 8, seed=seed, labels=cases.LABELS, **options)
        for seed in range(STEPS)
    ]


def compare(on_host: Run, on_device: Run, tolerance: Mapping[str, float]) -> None:
    for (name, expected), (_, found) in zip(on_host.results(), on_device.results(), strict=True):
        said = f"{name}: {found} is not {expected}"
        torch.testing.assert_close(found, expected, **tolerance, equal_nan=True, msg=said)


def run_both(
    cases: Any,
    config: Any,
    accelerator: torch.device,
    batches: list[Any],
    train: str = TRAIN,
    tolerance: Mapping[str, float] = EXACT,
) -> None:
    on_host = Run(cases, config, torch.device("cpu"), train).train(batches)
    module: Any = torch.get_device_module(accelerator)
    before = module.operations()
    on_device = Run(cases, config, accelerator, train).train(batches)
    assert module.operations() > before
    compare(on_host, on_device, tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_trains_as_on_the_cpu(name: str, cases: Any, accelerator: torch.device) -> None:
    tolerance = ROUNDED if name in ROUNDED_MODELS else EXACT
    config, batches = cases.model_config(name), batches_of(cases)
    if MODELS[name].lists:
        task = Run(cases, config, torch.device("cpu")).task
        batches = [with_lists(batch, task(batch)["lengths"]) for batch in batches]
    run_both(cases, config, accelerator, batches, tolerance=tolerance)


def with_lists(batch: Any, candidates: Tensor) -> Any:
    """The batch with a label for each candidate of a row."""
    labels = {name: values.repeat_interleave(candidates) for name, values in batch.labels.items()}
    return replace(batch, labels=labels, label_lengths=dict.fromkeys(labels, candidates))


EXTRAS = {
    "clipped over both halves": (
        "deepfm",
        "",
        'grad_clipping { clipping_type: "norm" max_gradient: 0.01 enable_global_grad_clip: true }',
    ),
    "clamped": ("deepfm", "", 'grad_clipping { clipping_type: "value" max_gradient: 0.001 }'),
    "a loss scale": ("deepfm", "", "grad_scaler { init_scale: 1024 }"),
    "bfloat16": ("deepfm", "", 'mixed_precision: "BF16"'),
    "Pareto weights": ("mmoe", "use_pareto_loss_weight: true", ""),
    "an average of the weights": ("dcn_v2", "", "dense_optimizer { ema { decay: 0.9 } }"),
}


@pytest.mark.parametrize("name", EXTRAS)
def test_trains_as_on_the_cpu_with(name: str, cases: Any, accelerator: torch.device) -> None:
    model, extra, train = EXTRAS[name]
    config = cases.model_config(model)
    text_format.Parse(extra, (merged := type(config)()))
    config.MergeFrom(merged)
    settings = text_format.Parse(TRAIN, TrainConfig())
    settings.MergeFrom(text_format.Parse(train, TrainConfig()))
    run_both(cases, config, accelerator, batches_of(cases), text_format.MessageToString(settings))


def test_sampled_negatives_go_along(cases: Any, accelerator: torch.device) -> None:
    config = cases.model_config("dssm")
    config.dssm.in_batch_negative = False
    items = [spec for spec in cases.FEATURES if spec.name in "bc"]
    batches = [
        replace(batch, negatives=cases.make_batch(items, 4, seed=9 + i))
        for i, batch in enumerate(batches_of(cases))
    ]
    run_both(cases, config, accelerator, batches)


def test_a_batch_without_rows_gives_a_loss(cases: Any, accelerator: torch.device) -> None:
    for name in ("deepfm", "multi_tower_din", "mmoe"):
        run = Run(cases, cases.model_config(name), accelerator)
        run.task.eval()
        batch = cases.make_batch(cases.FEATURES, 0, labels=cases.LABELS)
        assert run.task.losses(run.task(batch), batch)["total"].item() == 0


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_encodes_as_on_the_cpu(name: str, accelerator: torch.device) -> None:
    torch.manual_seed(1)
    lengths = torch.tensor([2, 0, 3, 1], dtype=torch.int32)
    query, sequence = torch.randn(4, 6), torch.randn(6, 6)
    encoder = build_encoder(name, 6, 6, ENCODER_PARAMS.get(name, {}), FIELDS)
    found = []
    for device in (torch.device("cpu"), accelerator):
        encoder = encoder.to(device)
        inputs = [tensor.clone().requires_grad_() for tensor in (query, sequence)]
        encoder.zero_grad()
        output = encoder(*(tensor.to(device) for tensor in inputs), lengths.to(device))
        output.square().sum().backward()
        gradients = [tensor.grad for tensor in (*inputs, *encoder.parameters())]
        found.append([None if tensor is None else tensor.detach().cpu() for tensor in (output, *gradients)])
    torch.testing.assert_close(found[1], found[0], **ROUNDED)


@pytest.mark.parametrize("text", LOSSES)
def test_loses_as_on_the_cpu(text: str, accelerator: torch.device) -> None:
    torch.manual_seed(2)
    width = LOSSES[text]
    logits, labels = torch.randn(6, width), torch.tensor([0, 1, 1, 0, 1, 0])
    weights, session = torch.rand(6), torch.tensor([1, 1, 2, 2, 2, 1])
    loss = build_loss(text_format.Parse(text, LossConfig()))
    values = [
        loss(logits.to(device), labels, weights=weights, session=session).cpu()
        for device in (torch.device("cpu"), accelerator)
    ]
    torch.testing.assert_close(values[1], values[0], rtol=1e-6, atol=0)


def test_labels_that_no_loss_can_use_are_found_on_the_host(accelerator: torch.device) -> None:
    for text, width in LOSSES.items():
        if text.startswith("l2"):
            continue
        loss = build_loss(text_format.Parse(text, LossConfig()))
        with pytest.raises(DataError, match="label 7 at row 1"):
            loss(
                torch.zeros(2, width, device=accelerator),
                torch.tensor([0.0, 7.0]),
                session=torch.tensor([1, 1]),
            )


@pytest.mark.parametrize("kind", ["mlp {}", "autodis { num_channels: 3 temperature: 0.1 keep_prob: 0.8 }"])
def test_dense_embeddings_and_variational_dropout(kind: str, cases: Any, accelerator: torch.device) -> None:
    from recgrad.config.proto import feature_pb2

    name = kind.split()[0]
    message = text_format.Parse(
        kind.partition(" ")[2].strip("{}"),
        feature_pb2.AutoDisEmbedding() if name == "autodis" else feature_pb2.MLPEmbedding(),
    )
    features: list[FeatureSpec] = [
        replace(spec, dense_embedding=message, embedding_dim=4) if spec.name == "x" else spec
        for spec in cases.FEATURES
    ]
    config = cases.model_config("mmoe")
    config.variational_dropout.regularization_lambda = 0.1
    task = Task(build_model(config, features, seed=3, label_fields=cases.LABELS))
    batch = cases.make_batch(features, 8, labels=cases.LABELS)
    totals = []
    for device in (torch.device("cpu"), accelerator):
        task.place(device)
        torch.manual_seed(5)  # seeds both generators alike
        totals.append(float(task.losses(task(batch), batch)["total"].detach()))
    assert totals[1] == pytest.approx(totals[0], rel=1e-6)
