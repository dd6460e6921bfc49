"""What a checkpoint holds of the dense half goes back into the model."""

from __future__ import annotations

import pytest
import torch
from google.protobuf import text_format

from recgrad.config.proto.model_pb2 import ModelConfig
from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.models.base import Model
from recgrad.models.build import build_model
from recgrad.training.dense_state import dense_buffers, dense_state, load_dense_state

DLRM = """
feature_groups { group_name: "dense" feature_names: ["x"] group_type: DEEP }
feature_groups { group_name: "sparse" feature_names: ["a", "b"] group_type: DEEP }
dlrm { dense_mlp { hidden_units: [4] } final { hidden_units: [4] } }
losses { binary_cross_entropy {} }
"""
FEATURES = (
    FeatureSpec("x", Kind.DENSE, value_dim=2),
    FeatureSpec("a", Kind.SPARSE, num_rows=7, embedding_dim=4),
    FeatureSpec("b", Kind.SPARSE, num_rows=7, embedding_dim=4),
)


def dlrm(extra: str = "", seed: int = 0) -> Model:
    return build_model(
        text_format.Parse(DLRM + extra, ModelConfig()), FEATURES, seed=seed, label_fields=["y"]
    )


@pytest.mark.parametrize("extra", ["", "variational_dropout { regularization_lambda: 0.1 }"])
def test_indices_that_a_model_derives_do_not_keep_its_state_from_going_back(extra: str) -> None:
    saved, model = dlrm(extra, seed=1), dlrm(extra, seed=2)
    assert [name for name, _ in saved.named_buffers() if name not in dense_state(saved)]
    load_dense_state(model, {**dense_state(saved), **dense_buffers(saved)})
    for name, value in dense_state(saved).items():
        assert torch.equal(dense_state(model)[name], value), name
