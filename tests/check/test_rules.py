"""The check: sound configs pass, and all problems come at once with their lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recgrad.check import check_rules
from recgrad.check.rule import CHECKS
from recgrad.config import PipelineConfig, edit_config, load_config, load_with_locations
from recgrad.errors import ConfigError

Problems = Callable[..., list[str]]
EXAMPLES = ["deepfm_criteo", "dssm_taobao", "mmoe_taobao", "multi_tower_din_taobao"]
TRAIN = "train_config"
DENSE = "train_config.dense_optimizer"
SPARSE = "train_config.sparse_optimizer"
MODEL = "model_config"
CAT = "feature_configs[13].id_feature"


@pytest.mark.parametrize("name", EXAMPLES)
def test_sound_configs_have_no_problems_and_no_hints(example: Callable[[str], Path], name: str) -> None:
    loaded = load_with_locations(example(name))
    report = check_rules(loaded.message, locations=loaded.locations, rows=10_000_000)
    assert report.ok
    assert not report.hints


def test_problems_come_in_the_order_of_the_file_with_their_lines(example: Callable[[str], Path]) -> None:
    loaded = load_with_locations(example("deepfm_criteo"))
    edits = {
        "train_config.num_steps": 10,
        "model_config.feature_groups[0].feature_names[0]": "cat_99",
        "data_config.batch_size": 0,
    }
    edited = edit_config(loaded.message, edits)
    report = check_rules(edited, locations=loaded.locations)
    assert [str(problem) for problem in report.problems] == [
        "deepfm_criteo.config:5 train_config: num_steps and num_epochs are both set; keep one",
        "deepfm_criteo.config:25 data_config.batch_size: must be at least 1, got 0",
        "deepfm_criteo.config:125 model_config.feature_groups[0].feature_names[0]: "
        "no feature 'cat_99'; did you mean 'cat_19'?",
    ]
    with pytest.raises(ConfigError) as raised:
        report.raise_problems()
    assert raised.value.problems == report.problems


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ({TRAIN: None}, ["train_config: is missing"]),
        ({"data_config": None}, ["data_config: is missing"]),
        ({MODEL: None}, ["model_config: is missing"]),
        ({"train_input_path": None}, ["train_input_path: is required"]),
        ({"train_input_path": ""}, ["train_input_path: is empty"]),
        ({"model_dir": ""}, ["model_dir: is empty"]),
        ({"eval_input_path": ""}, []),
        ({SPARSE: None}, ["train_config.sparse_optimizer: is required"]),
        ({f"{CAT}.feature_name": ""}, ["feature_configs[13].id_feature.feature_name: is empty"]),
        (
            {f"{CAT}.embedding_dim": None},
            ["feature_configs[13].id_feature: ids need an embedding_dim of at least 1"],
        ),
        ({f"{MODEL}.deepfm.deep": None}, ["model_config.deepfm.deep: is required"]),
        ({f"{MODEL}.deepfm": None}, ["model_config: names no model"]),
        ({f"{MODEL}.losses": [{}]}, ["model_config.losses[0]: names no loss"]),
        ({f"{MODEL}.metrics[+]": {}}, ["model_config.metrics[2]: names no metric"]),
        ({DENSE: {}}, ["train_config.dense_optimizer: names no optimizer"]),
        ({"feature_configs[+]": {}}, ["feature_configs[39]: names no feature"]),
        (
            {f"{MODEL}.metrics[1].grouped_auc": {}},
            ["model_config.metrics[1].grouped_auc.grouping_key: is required"],
        ),
    ],
    ids=str,
)
def test_required(problems: Problems, edits: dict[str, Any], expected: list[str]) -> None:
    got = problems(edits)
    assert [
        line for line in got if "no feature ''" not in line and "no feature 'cat_0'" not in line
    ] == expected


def test_an_empty_config_is_reported_not_crashed_on() -> None:
    report = check_rules(PipelineConfig())
    assert [str(problem) for problem in report.problems] == [
        "train_config: is missing",
        "data_config: is missing",
        "model_config: is missing",
        "feature_configs: is missing; a model needs features",
        "train_input_path: is required",
        "eval_input_path: is required",
        "model_dir: is required",
    ]


def test_the_check_leaves_the_config_alone(config: PipelineConfig) -> None:
    before = config.SerializePartialToString(deterministic=True)
    check_rules(config)
    assert config.SerializePartialToString(deterministic=True) == before


def large_config(scale: int) -> PipelineConfig:
    """Many features, and groups that name many others: most lines are a mistake."""
    features = [{"id_feature": {"feature_name": f"cat_{i}", "num_buckets": 5}} for i in range(2_500 * scale)]
    groups = [
        {"group_name": f"g{i % 50}", "feature_names": [f"dog_{j}" for j in range(i, i + 100)]}
        for i in range(75 * scale)
    ]
    return load_config(
        {"feature_configs": features, "model_config": {"feature_groups": groups, "dcn_v1": {}}}
    )


def test_the_time_of_a_check_grows_with_the_config_and_no_faster() -> None:
    def seconds(config: PipelineConfig) -> float:
        start = time.process_time()
        report = check_rules(config)
        assert len(report.problems) <= 501
        assert str(report.problems[-1]).startswith("more than 500 of these")
        return time.process_time() - start

    small, large = large_config(1), large_config(4)
    times = [(seconds(small), seconds(large)) for _ in range(3)]
    assert min(t for _, t in times) < 10 * min(t for t, _ in times)  # the square would be 16


def test_rules_are_listed_with_what_they_check() -> None:
    assert len(CHECKS) > 20
    for name, rule in CHECKS.items():
        assert rule.__doc__, name
