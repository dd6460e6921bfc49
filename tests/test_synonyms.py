"""Names that people type get the config's name for it as a suggestion."""

from __future__ import annotations

import pytest

from recgrad.check.capabilities import REGISTRIES
from recgrad.cli.list import KINDS
from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.config.proto.feature_pb2 import FeatureConfig
from recgrad.config.proto.loss_pb2 import LossConfig
from recgrad.config.proto.metric_pb2 import MetricConfig
from recgrad.config.proto.model_pb2 import ModelConfig
from recgrad.config.proto.optimizer_pb2 import DenseOptimizer, SparseOptimizer
from recgrad.config.proto.seq_encoder_pb2 import SeqEncoderConfig
from recgrad.config.values import _LISTED, unknown_enum, unknown_field
from recgrad.errors import nearest
from recgrad.synonyms import SYNONYMS, folded


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        (
            MetricConfig,
            {
                "rmse": "mean_squared_error",
                "mse": "mean_squared_error",
                "mae": "mean_absolute_error",
                "logloss": "log_loss",
                "LogLoss": "log_loss",
                "gauc": "grouped_auc",
                "roc_auc": "auc",
                "acc": "accuracy",
                "hr": "hit_rate_at_k",
                "ndcg": "ndcg_at_k",
                "recall": "recall_at_k",
            },
        ),
        (
            LossConfig,
            {
                "bce": "binary_cross_entropy",
                "BCEWithLogitsLoss": "binary_cross_entropy",
                "logloss": "binary_cross_entropy",
                "crossentropy": "binary_cross_entropy",
                "softmax": "softmax_cross_entropy",
                "mse": "l2_loss",
                "focal": "binary_focal_loss",
            },
        ),
        (
            DenseOptimizer,
            {
                "adam": "adam_optimizer",
                "AdamW": "adamw_optimizer",
                "adamax": "adam_optimizer",
                "nadam": "nadam_optimizer",
                "momentum": "sgd_optimizer",
                "cosine": "cosine_annealing_learning_rate",
                "CosineAnnealingLR": "cosine_annealing_learning_rate",
                "onecycle": "one_cycle_learning_rate",
                "StepLR": "step_decay_learning_rate",
                "plateau": "reduce_on_plateau_learning_rate",
                "ReduceLROnPlateau": "reduce_on_plateau_learning_rate",
            },
        ),
        (
            SparseOptimizer,
            {
                "adamw": "adam_optimizer",
                "rowwise_adagrad": "rowwise_adagrad_optimizer",
                "lars": "lars_sgd_optimizer",
            },
        ),
        (
            ModelConfig,
            {
                "widedeep": "wide_and_deep",
                "dcn": "dcn_v2",
                "din": "multi_tower_din",
                "DeepFM": "deepfm",
                "two_tower": "dssm",
                "shared_bottom": "simple_multi_task",
            },
        ),
        (FeatureConfig, {"categorical": "id_feature", "numeric": "raw_feature", "id": "id_feature"}),
        (SeqEncoderConfig, {"din": "din_encoder", "transformer": "self_attention_encoder"}),
    ],
    ids=["metric", "loss", "dense", "sparse", "model", "feature", "encoder"],
)
def test_common_names_are_understood(message: type, typed: dict[str, str]) -> None:
    for name, meant in typed.items():
        text = unknown_field(message.DESCRIPTOR, name)  # type: ignore[attr-defined]
        assert text.endswith(f"'{name}'; did you mean '{meant}'?")


def test_readers_are_understood() -> None:
    enum = DataConfig.DESCRIPTOR.fields_by_name["dataset_type"].enum_type
    assert unknown_enum(enum, "csv").endswith("did you mean 'CsvDataset'?")


def test_names_without_a_near_one_lead_to_the_list() -> None:
    assert unknown_field(MetricConfig.DESCRIPTOR, "f1") == (
        "no metric 'f1' in MetricConfig; `recgrad list metrics` shows what there is"
    )
    assert unknown_field(DenseOptimizer.DESCRIPTOR, "shampoo") == (
        "no field 'shampoo' in DenseOptimizer; `recgrad list optimizers` and `recgrad list schedules` show "
        "what there is"
    )
    assert set(_LISTED.values()) <= set(KINDS)


def test_every_synonym_leads_to_something_that_exists() -> None:
    names = {name for registry in REGISTRIES.values() for name in registry}
    assert {meant for several in SYNONYMS.values() for meant in several} <= names
    assert all(word == folded(word) for word in SYNONYMS)


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_component_is_found_by_other_spellings(kind: str) -> None:
    """Without case, underscores or the word for the kind; never another component's name."""
    known = list(REGISTRIES[kind])
    for name in known:
        for typed in (name.upper(), name.replace("_", ""), name.replace("_", "-").title()):
            assert nearest(typed, known) == f"; did you mean '{name}'?"
