"""Checks of feature groups, models, losses and metrics."""

# One line a case: the expected messages are kept whole.
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Problems = Callable[..., list[str]]
MODEL = "model_config"
GROUPS = "model_config.feature_groups"
TOWERS = "model_config.mmoe.task_towers"
CLICKS = "feature_configs[13].sequence_feature"
THREE = {
    "model_config.num_class": 3,
    "model_config.losses": [{"softmax_cross_entropy": {}}],
    "model_config.train_metrics": [],
}


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ({f"{GROUPS}[2].feature_names[0]": "int_99"}, [f"{GROUPS}[2].feature_names[0]: no feature 'int_99'; did you mean 'int_9'?"]),
        ({f"{GROUPS}[2].feature_names[+]": "cat_0"}, [f"{GROUPS}[2].feature_names[39]: feature 'cat_0' is listed twice; keep one"]),
        ({f"{GROUPS}[2].feature_names": []}, [f"{GROUPS}[2]: has no features; list them in feature_names"]),
        ({GROUPS: None}, ["model_config: feature_groups is missing; a model needs at least one"]),
        ({f"{GROUPS}[0]": None}, [f"{GROUPS}: deepfm needs a group 'wide' of type WIDE"]),
        ({f"{GROUPS}[2]": None}, [f"{GROUPS}: deepfm needs a group 'deep' of type DEEP"]),
        ({f"{GROUPS}[0].group_type": "DEEP"}, [f"{GROUPS}[0].group_type: deepfm needs the group 'wide' to be WIDE, got DEEP"]),
        ({f"{GROUPS}[+]": {"group_name": "more", "feature_names": ["cat_0"]}}, [f"{GROUPS}[3].group_name: deepfm does not read a group 'more', only 'wide', 'deep', 'fm'"]),
        ({f"{GROUPS}[+]": {"group_name": "fm", "feature_names": ["cat_0"]}}, [f"{GROUPS}[3].group_name: two groups are called 'fm'; rename one"]),
        ({f"{GROUPS}[0].feature_names[+]": "int_0"}, [f"{GROUPS}[0].feature_names[26]: feature 'int_0' has no ids, so no WIDE group can hold it; give it boundaries"]),
        ({f"{GROUPS}[0].sequence_groups": [{"feature_names": ["cat_0"]}]}, [f"{GROUPS}[0]: sequence_groups and sequence_encoders belong in DEEP groups only"]),
    ],
    ids=str,
)  # fmt: skip
def test_deepfm_groups(problems: Problems, edits: dict[str, Any], expected: list[str]) -> None:
    assert problems(edits) == expected


@pytest.mark.parametrize(
    ("base", "edits", "expected"),
    [
        ("mmoe_taobao", {f"{GROUPS}[+]": {"group_name": "b", "feature_names": ["age"]}}, [f"{GROUPS}: mmoe takes one group, got 'all', 'b'"]),
        ("mmoe_taobao", {f"{GROUPS}[0].group_type": "WIDE"}, [f"{GROUPS}[0].group_type: mmoe needs the group 'all' to be DEEP, got WIDE"]),
        ("dssm_taobao", {f"{MODEL}.dssm.user_tower.input": "usr"}, [
            f"{MODEL}.dssm.user_tower.input: no feature group 'usr'; did you mean 'user'?",
            f"{GROUPS}[0].group_name: no tower of dssm reads the group 'user'; name it, or remove it"]),
        ("dssm_taobao", {"data_config.negative_sampler": None}, [f"{MODEL}.dssm: has no negatives; set in_batch_negative, or a negative_sampler in data_config"]),
        ("dssm_taobao", {f"{GROUPS}[0].sequence_encoders[0].pooling_encoder.input": "click"}, [
            f"{GROUPS}[0].sequence_encoders[0].pooling_encoder.input: no sequence group 'click'; did you mean 'clicks'?",
            f"{GROUPS}[0].sequence_groups[0]: no sequence_encoders entry reads 'clicks'; add one, or remove the group"]),
        ("dssm_taobao", {f"{GROUPS}[0].sequence_groups[0].feature_names": ["age"]}, [f"{GROUPS}[0].sequence_groups[0]: has no sequence feature; a sequence group needs at least one"]),
        ("dssm_taobao", {f"{GROUPS}[0].sequence_groups[0].feature_names[0]": "clicks__ad"}, [f"{GROUPS}[0].sequence_groups[0].feature_names[0]: no feature 'clicks__ad'; did you mean 'clicks__ad_id'?"]),
        ("dssm_taobao", {"data_config.negative_sampler.attr_fields": []}, ["data_config.negative_sampler.attr_fields: is empty"]),
        ("dssm_taobao", {"data_config.negative_sampler.num_sample": 0}, ["data_config.negative_sampler.num_sample: must be at least 1, got 0"]),
        ("dssm_taobao", {f"{CLICKS}.sequence_length": 0}, [f"{CLICKS}.sequence_length: must be at least 1, got 0"]),
        ("dssm_taobao", {f"{CLICKS}.sequence_delim": ""}, [f"{CLICKS}.sequence_delim: is empty"]),
        ("dssm_taobao", {f"{CLICKS}.features[0].id_feature.sequence_delim": ";"}, [f"{CLICKS}.features[0].id_feature.sequence_delim: belongs to the sequence_feature around it; remove it here"]),
        ("multi_tower_din_taobao", {f"{GROUPS}[1].group_type": "DEEP"}, [f"{GROUPS}[1].group_type: multi_tower_din needs the group 'seq' to be SEQUENCE, got DEEP"]),
        ("multi_tower_din_taobao", {f"{MODEL}.multi_tower_din.din_towers": []}, [f"{GROUPS}[1].group_name: no tower of multi_tower_din reads the group 'seq'; name it, or remove it"]),
        ("multi_tower_din_taobao", {f"{MODEL}.multi_tower_din.final.hidden_units": []}, [f"{MODEL}.multi_tower_din.final.hidden_units: is empty"]),
        ("multi_tower_din_taobao", {f"{MODEL}.multi_tower_din.final": {"hidden_units": [64, 0], "dropout_ratio": [0.1, 0.2, 1]}}, [
            f"{MODEL}.multi_tower_din.final.hidden_units[1]: must be at least 1, got 0",
            f"{MODEL}.multi_tower_din.final.dropout_ratio[2]: must be in [0, 1), got 1",
            f"{MODEL}.multi_tower_din.final: dropout_ratio has 3 values for 2 layers; give one, or one for each"]),
    ],
    ids=str,
)  # fmt: skip
def test_groups_and_models(problems: Problems, base: str, edits: dict[str, Any], expected: list[str]) -> None:
    assert problems(edits, base) == expected


def test_models_of_sparse_and_dense_groups(problems: Problems) -> None:
    dlrm = {
        GROUPS: [
            {"group_name": "sparse", "feature_names": ["cat_0", "cat_1"]},
            {"group_name": "dense", "feature_names": ["int_0"]},
        ],
        f"{MODEL}.dlrm": {"dense_mlp": {"hidden_units": [16]}, "final": {"hidden_units": [8]}},
    }
    assert problems(dlrm) == []
    together = "dense_mlp and a group called 'dense' go together"
    assert problems({**dlrm, f"{MODEL}.dlrm.dense_mlp": None}, build=True) == [
        f"model_config.dlrm: {together}; a dense_mlp is missing"
    ]
    assert problems({**dlrm, f"{GROUPS}[1]": None}, build=True) == [
        f"model_config.dlrm.dense_mlp: {together}; a group 'dense' is missing"
    ]
    assert problems({**dlrm, f"{GROUPS}[0].group_name": "sparce"}) == [
        f"{GROUPS}[0].group_name: dlrm does not read a group 'sparce', only 'sparse', 'dense'",
        f"{GROUPS}: dlrm needs a group 'sparse' of type DEEP",
    ]
    assert problems({**dlrm, "feature_configs[14].id_feature.embedding_dim": 8}, build=True) == [
        f"{GROUPS}[0]: needs features of equal width, got 'cat_1' 8, 'cat_0' 16; give them one embedding_dim"
    ]
    assert problems({f"{GROUPS}[1]": None}, build=True) == [
        f"{GROUPS}[1]: needs features of equal width, got 'int_0' 1, 'cat_0' 16; "
        "give them one embedding_dim, or list those that have one in a group 'fm'"
    ]


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ({f"{MODEL}.num_class": 2}, [f"{MODEL}.losses[0].binary_cross_entropy: needs num_class 1, got 2"]),
        ({f"{MODEL}.losses": [{"softmax_cross_entropy": {}}]}, [f"{MODEL}.losses[0].softmax_cross_entropy: needs num_class of at least 2, got 1"]),
        ({f"{MODEL}.losses": []}, [f"{MODEL}: losses is empty; name at least one"]),
        ({f"{MODEL}.losses[+]": {"binary_cross_entropy": {}}}, [f"{MODEL}.losses[0].binary_cross_entropy: binary_cross_entropy is given twice; keep one"]),
        ({f"{MODEL}.losses[+]": {"jrc_loss": {"session_name": "user_id"}}}, [f"{MODEL}: jrc_loss has 2 logits and binary_cross_entropy 1; keep one of them"]),
        ({f"{MODEL}.losses": [{"jrc_loss": {"session_name": "user_id", "alpha": 2}}]}, [f"{MODEL}.losses[0].jrc_loss.alpha: must be in [0, 1], got 2"]),
        ({f"{MODEL}.losses": [{"jrc_loss": {"session_name": ""}}]}, [f"{MODEL}.losses[0].jrc_loss.session_name: is empty"]),
        ({f"{MODEL}.losses": [{"jrc_loss": {"session_name": "user_id"}}], f"{MODEL}.num_class": 2}, []),
        ({f"{MODEL}.losses": [{"binary_cross_entropy": {"label_smoothing": 1}}]}, [f"{MODEL}.losses[0].binary_cross_entropy.label_smoothing: must be in [0, 1), got 1"]),
        ({f"{MODEL}.losses": [{"binary_focal_loss": {"alpha": 1}}]}, [f"{MODEL}.losses[0].binary_focal_loss.alpha: must be in (0, 1), got 1"]),
        ({f"{MODEL}.losses": [{"l2_loss": {}}], f"{MODEL}.metrics": [{"auc": {}}, {"xauc": {}}], f"{MODEL}.train_metrics": []}, [f"{MODEL}.metrics[0].auc: needs probabilities, but l2_loss predicts values; use mean_squared_error"]),
        ({f"{MODEL}.metrics": [{"multiclass_auc": {}}]}, [f"{MODEL}.metrics[0].multiclass_auc: needs num_class of at least 2, got 1; use auc"]),
        ({f"{MODEL}.metrics": [{"accuracy": {"top_k": 5}}]}, [f"{MODEL}.metrics[0].accuracy.top_k: must be at most 1 with num_class 1, got 5"]),
        ({**THREE, f"{MODEL}.metrics": [{"accuracy": {"top_k": 3}}]}, [f"{MODEL}.metrics[0].accuracy.top_k: must be at most 2 with num_class 3, got 3"]),
        ({**THREE, f"{MODEL}.metrics": [{"accuracy": {"top_k": 2}}]}, []),
        ({**THREE, f"{MODEL}.metrics": [{"accuracy": {"threshold": 0.2}}]}, [f"{MODEL}.metrics[0].accuracy.threshold: is for num_class 1 or 2, got 3; use top_k"]),
        ({f"{MODEL}.metrics": [{"auc": {"exact": True, "thresholds": 300}}]}, [f"{MODEL}.metrics[0].auc.thresholds: has no effect with exact; keep one"]),
        ({f"{MODEL}.metrics": [{"xauc": {"exact": True, "max_pairs": 3, "in_batch": True, "sample_ratio": 0.5}}]}, [f"{MODEL}.metrics[0].xauc.{field}: has no effect with exact; keep one" for field in ("sample_ratio", "max_pairs", "in_batch")]),
        ({f"{MODEL}.metrics": [{"xauc": {"max_pairs": 3, "in_batch": True}}]}, [f"{MODEL}.metrics[0].xauc.max_pairs: has no effect with in_batch; keep one"]),
        ({f"{MODEL}.metrics": [{"xauc": {"max_pairs": 0}}]}, [f"{MODEL}.metrics[0].xauc.max_pairs: must be at least 1, got 0"]),
        ({f"{MODEL}.metrics": [{"grouped_xauc": {"grouping_key": "user_id", "max_pairs_per_group": 5, "exact": True}}]}, [f"{MODEL}.metrics[0].grouped_xauc.max_pairs_per_group: has no effect with exact; keep one"]),
        ({f"{MODEL}.metrics": [{"grouped_xauc": {"grouping_key": "user_id", "max_pairs_per_group": 0}}]}, [f"{MODEL}.metrics[0].grouped_xauc.max_pairs_per_group: must be at least 1, got 0"]),
        ({f"{MODEL}.metrics": [{"log_loss": {"eps": 0.5}}, {"normalized_entropy": {"eta": 0}}]}, [f"{MODEL}.metrics[0].log_loss.eps: must be in (0, 0.5), got 0.5", f"{MODEL}.metrics[1].normalized_entropy.eta: must be in (0, 0.5), got 0"]),
        ({f"{MODEL}.metrics": [{"mrr": {"grouping_key": "user_id", "top_k": 0}}]}, [f"{MODEL}.metrics[0].mrr.top_k: must be at least 1, got 0"]),
        ({f"{MODEL}.train_metrics": [{"auc": {"exact": True}}]}, [f"{MODEL}.train_metrics[0].auc.exact: is for evaluation, where all rows are kept; remove it here"]),
        ({f"{MODEL}.metrics": [{"recall_at_k": {}}]}, [f"{MODEL}.metrics[0].recall_at_k: needs a grouping_key, the field whose rows are ranked together"]),
        ({f"{MODEL}.metrics": [{"recall_at_k": {"grouping_key": "user_id"}}]}, []),
        ({f"{MODEL}.train_metrics": [{"recall_at_k": {"grouping_key": "user_id"}}]}, [f"{MODEL}.train_metrics[0].recall_at_k.grouping_key: is for evaluation, where all rows are kept; remove it here"]),
        ({f"{MODEL}.train_metrics": [{"auc": {"thresholds": 1}, "decay_rate": 1}]}, [f"{MODEL}.train_metrics[0].auc.thresholds: must be at least 2, got 1", f"{MODEL}.train_metrics[0].decay_rate: must be in [0, 1), got 1"]),
        ({f"{MODEL}.use_pareto_loss_weight": True}, [f"{MODEL}.use_pareto_loss_weight: needs a model of two or more task_towers"]),
    ],
    ids=str,
)  # fmt: skip
def test_losses_and_metrics(problems: Problems, edits: dict[str, Any], expected: list[str]) -> None:
    assert problems(edits) == expected


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ({TOWERS: []}, [f"{MODEL}.mmoe: task_towers is empty"]),
        ({f"{TOWERS}[0].label_name": "click"}, [f"{TOWERS}[0].label_name: no label 'click'; did you mean 'clk'?"]),
        ({f"{TOWERS}[0].tower_name": "cvr"}, [f"{TOWERS}[1].tower_name: two towers are called 'cvr'; rename one"]),
        ({f"{MODEL}.losses": [{"l2_loss": {}}]}, [f"{MODEL}.losses[0]: losses of a multi-task model belong into its task_towers"]),
        ({f"{MODEL}.num_class": 2}, [f"{MODEL}.num_class: num_class of a multi-task model belongs into its task_towers"]),
        ({f"{TOWERS}[0].losses": []}, [f"{TOWERS}[0]: losses is empty; name at least one"]),
        ({f"{TOWERS}[0].sample_weight_name": "w"}, [f"{TOWERS}[0].sample_weight_name: no sample weight field 'w'"]),
        ({f"{TOWERS}[0].task_space_indicator_label": "cl"}, [f"{TOWERS}[0].task_space_indicator_label: no label 'cl'; did you mean 'clk'?"]),
        ({f"{TOWERS}[0].pareto_min_loss_weight": 0.5}, [f"{TOWERS}[0].pareto_min_loss_weight: needs use_pareto_loss_weight: true"]),
        ({f"{TOWERS}[:].pareto_min_loss_weight": 0.6, f"{MODEL}.use_pareto_loss_weight": True}, [f"{MODEL}: the towers' pareto_min_loss_weight add up to 1.2, which must be at most 1"]),
        ({f"{TOWERS}[:].pareto_min_loss_weight": 0.5, f"{MODEL}.use_pareto_loss_weight": True}, []),
        ({f"{MODEL}.mmoe.num_expert": 0}, [f"{MODEL}.mmoe.num_expert: must be in [1, 10000], got 0"]),
    ],
    ids=str,
)  # fmt: skip
def test_task_towers(problems: Problems, edits: dict[str, Any], expected: list[str]) -> None:
    assert problems(edits, "mmoe_taobao") == expected


def test_related_towers_go_in_no_circle(problems: Problems) -> None:
    tower = {
        "label_name": "clk",
        "losses": [{"binary_cross_entropy": {}}],
        "relation_mlp": {"hidden_units": [4]},
    }
    towers = [
        {**tower, "tower_name": "ctr", "relation_tower_names": ["cvr"]},
        {**tower, "tower_name": "cvr", "label_name": "buy", "relation_tower_names": ["ctr"]},
    ]
    dbmtl = f"{MODEL}.dbmtl"
    assert problems({dbmtl: {"task_towers": towers}}, "mmoe_taobao", build=True) == [
        "model_config.dbmtl.task_towers[0].relation_tower_names: "
        "must not go in a circle, got one among ctr, cvr"
    ]
    del towers[1]["relation_tower_names"]
    assert problems({dbmtl: {"task_towers": towers}}, "mmoe_taobao", build=True) == []


def test_losses_over_negatives_need_two_towers(problems: Problems) -> None:
    (problem,) = problems({f"{MODEL}.losses": [{"bpr_loss": {}}]})
    assert (
        problem
        == f"{MODEL}.losses[0].bpr_loss: compares an item with negatives, so it needs a two-tower model"
    )


def test_two_towers_learn_against_negatives(problems: Problems) -> None:
    edits = {f"{MODEL}.losses": [{"binary_cross_entropy": {}}], f"{MODEL}.metrics": [{"auc": {}}]}
    assert problems(edits, "dssm_taobao") == [
        "model_config.losses[0].binary_cross_entropy: "
        "does not compare an item with negatives; use one of "
        "bpr_loss, cosine_contrastive_loss, full_softmax, gbce_loss, softmax_cross_entropy",
        "model_config.metrics[0].auc: does not fit a two-tower model; "
        "use one of hit_rate_at_k, mrr, ndcg_at_k, recall_at_k",
    ]


def test_no_model_has_millions_of_experts(problems: Callable[..., list[str]]) -> None:
    (problem,) = problems({"model_config.mmoe.num_expert": 4_000_000_000}, base="mmoe_taobao")
    assert problem == "model_config.mmoe.num_expert: must be in [1, 10000], got 4000000000"
