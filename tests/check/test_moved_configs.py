"""What configs of TorchEasyRec hold beyond the plain schema: the whole check takes it, and it is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from recgrad.check import check_config
from recgrad.config import PipelineConfig, edit_config
from recgrad.data.features.build import features_of
from recgrad.models.build import build_model

Whole = Callable[[str], PipelineConfig]
SEQUENCE = {"feature_names": ["b", "h__item", "h__price"]}
ENCODER = {"din_encoder": {"attn_mlp": {"hidden_units": [4]}}}
GROUP = "model_config.feature_groups[0]"


def with_sequences(config: PipelineConfig, groups: list[Any], encoders: list[Any]) -> PipelineConfig:
    edits = {f"{GROUP}.sequence_groups": groups, f"{GROUP}.sequence_encoders": encoders}
    return edit_config(config, edits)


@pytest.mark.parametrize("name", [{}, {"group_name": "clicks"}])
def test_an_encoder_reads_the_one_sequence_group_that_there_is(whole: Whole, name: dict[str, str]) -> None:
    config = with_sequences(whole("mmoe"), [{**SEQUENCE, **name}], [ENCODER, {"pooling_encoder": {}}])
    assert check_config(config).problems == ()
    specs = [feature.spec for feature in features_of(config)]
    model = build_model(config.model_config, specs, label_fields=["click", "buy"])
    assert len(model.groups.plan.encoders["all"]) == 2


def test_an_encoder_beside_several_sequence_groups_names_one(whole: Whole) -> None:
    groups = [{**SEQUENCE, "group_name": "one"}, {**SEQUENCE, "group_name": "two"}]
    problems = check_config(with_sequences(whole("mmoe"), groups, [ENCODER])).problems
    assert f"{GROUP}.sequence_encoders[0].din_encoder.input" in [problem.where for problem in problems]
    assert "is required unless there is one sequence group (there are: 'one', 'two')" in problems[0].what


def test_an_embedding_dim_of_a_plain_number_changes_nothing(whole: Whole) -> None:
    plain = whole("deepfm")
    config = edit_config(plain, {"feature_configs[4].raw_feature.embedding_dim": 16})
    report = check_config(config)
    assert report.ok
    assert report.hints[0].where == "feature_configs[4].raw_feature.embedding_dim"
    assert [f.spec for f in features_of(config)] == [f.spec for f in features_of(plain)]


def test_zeros_mean_off_and_all(whole: Whole) -> None:
    edits = {"train_config.gradient_accumulation_steps": 0, "eval_config.num_steps": 0}
    assert check_config(edit_config(whole("deepfm"), edits)).problems == ()


def test_an_overlap_that_is_read_encoded_needs_no_method(whole: Whole) -> None:
    overlap = {"overlap_feature": {"feature_name": "o", "boundaries": [1, 2], "embedding_dim": 4}}
    edits = {
        "data_config.fg_mode": "FG_NONE",
        "feature_configs[+]": overlap,
        "model_config.feature_groups[group_name=deep].feature_names[+]": "o",
    }
    assert check_config(edit_config(whole("deepfm"), edits)).problems == ()


def test_members_of_sequences_by_one_underscore(whole: Whole) -> None:
    groups = [{"feature_names": ["b", "h_item", "h_price"]}]
    config = with_sequences(whole("mmoe"), groups, [ENCODER])
    assert [problem.what for problem in check_config(config).problems][:1] == [
        "no feature 'h_item'; did you mean 'h__item'?"
    ]
    config.rtp_names = True
    assert check_config(config).problems == ()
