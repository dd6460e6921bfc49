from __future__ import annotations

import json
import time
from typing import Any

import pytest
from google.protobuf import text_format

from recgrad.config import Locations, PipelineConfig, edit_config, load_config, load_with_locations
from recgrad.config.edit import MAX_EDITS
from recgrad.config.proto.data_pb2 import FG_DAG, FG_NONE, FG_NORMAL
from recgrad.config.proto.feature_pb2 import FeatureConfig
from recgrad.errors import ConfigError

BASE = """
model_dir: "a"
train_config {
  dense_optimizer { adam_optimizer { lr: 0.1 } }
  num_steps: 5
}
feature_configs { raw_feature { feature_name: "price" boundaries: [1, 2] } }
feature_configs { id_feature { feature_name: "cat_1" embedding_dim: 16 } }
feature_configs { id_feature { feature_name: "cat_2" embedding_dim: 8 vocab_dict { key: "a" value: 1 } } }
feature_configs { lookup_feature { feature_name: "a;b" embedding_dim: 4 value_dim: 1 } }
model_config {
  feature_groups { group_name: "deep" feature_names: ["price", "cat_1"] }
}
"""


@pytest.fixture
def base() -> PipelineConfig:
    return text_format.Parse(BASE, PipelineConfig())


def changed(base: PipelineConfig, edits: Any) -> str:
    """What an edit adds to and takes from the config, as text."""
    before = text_format.MessageToString(base).splitlines()
    after = text_format.MessageToString(edit_config(base, edits)).splitlines()
    taken = [line.strip() for line in before]
    added = []
    for line in map(str.strip, after):
        if line in taken:
            taken.remove(line)
        else:
            added.append(line)
    return f"- {' '.join(taken)} + {' '.join(added)}"


def error_of(base: PipelineConfig, edits: Any) -> str:
    untouched = base.SerializePartialToString(deterministic=True)
    with pytest.raises(ConfigError) as raised:
        edit_config(base, edits)
    assert base.SerializePartialToString(deterministic=True) == untouched
    return str(raised.value)


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ({"model_dir": "b"}, '- model_dir: "a" + model_dir: "b"'),
        ({"model_dir": 5}, '- model_dir: "a" + model_dir: "5"'),
        ({"train_config.num_steps": "7"}, "- num_steps: 5 + num_steps: 7"),
        ({"train_config.num_steps": 7.0}, "- num_steps: 5 + num_steps: 7"),
        ({"train_config.use_tensorboard": "False"}, "-  + use_tensorboard: false"),
        ({"train_config.use_tensorboard": False}, "-  + use_tensorboard: false"),
        ({"train_config.dense_optimizer.adam_optimizer.lr": "1e-3"}, "- lr: 0.1 + lr: 0.001"),
        ({"model_config.feature_groups[0].group_type": "WIDE"}, "-  + group_type: WIDE"),
        (
            {"feature_configs[0].raw_feature.boundaries": [4, 5, 6, 7]},
            "- boundaries: 1.0 boundaries: 2.0 "
            "+ boundaries: 4.0 boundaries: 5.0 boundaries: 6.0 boundaries: 7.0",
        ),
        (
            {"feature_configs[0].raw_feature.boundaries": "[4, 5]"},
            "- boundaries: 1.0 boundaries: 2.0 + boundaries: 4.0 boundaries: 5.0",
        ),
        ({"feature_configs[0].raw_feature.boundaries[1]": 9}, "- boundaries: 2.0 + boundaries: 9.0"),
        (
            {"feature_configs[feature_name=cat_1].id_feature.embedding_dim": 32},
            "- embedding_dim: 16 + embedding_dim: 32",
        ),
        (
            {"feature_configs[id_feature.feature_name=cat_2].id_feature.embedding_dim": 9},
            "- embedding_dim: 8 + embedding_dim: 9",
        ),
        (
            {"feature_configs[feature_name='cat_2'].id_feature.embedding_dim": 9},
            "- embedding_dim: 8 + embedding_dim: 9",
        ),
        ({"feature_configs[embedding_dim>8].id_feature.pooling": "mean"}, '-  + pooling: "mean"'),
        (
            {"feature_configs[embedding_dim>=8].id_feature.pooling": "mean"},
            '-  + pooling: "mean" pooling: "mean"',
        ),
        ({"feature_configs[embedding_dim<8].lookup_feature.pooling": "mean"}, '-  + pooling: "mean"'),
        ({"feature_configs[embedding_dim <= 4].lookup_feature.pooling": "mean"}, '-  + pooling: "mean"'),
        ({"feature_configs[embedding_dim=8].id_feature.trainable": "false"}, "-  + trainable: false"),
        ({"feature_configs[:].id_feature.trainable": False}, "-  + trainable: false trainable: false"),
        (
            {"feature_configs[1:3].id_feature.embedding_dim": 4},
            "- embedding_dim: 16 embedding_dim: 8 + embedding_dim: 4 embedding_dim: 4",
        ),
        ({"feature_configs[-2].id_feature.embedding_dim": 4}, "- embedding_dim: 8 + embedding_dim: 4"),
        ({"feature_configs[:-2].id_feature.embedding_dim": 4}, "- embedding_dim: 16 + embedding_dim: 4"),
        (
            {"feature_configs[+]": {"id_feature": {"feature_name": "new"}}},
            '-  + feature_configs { id_feature { feature_name: "new" } }',
        ),
        (
            {"feature_configs[+]": 'id_feature { feature_name: "new" }'},
            '-  + feature_configs { id_feature { feature_name: "new" } }',
        ),
        (
            {"model_config.feature_groups[group_name=deep].feature_names[+]": "cat_2"},
            '-  + feature_names: "cat_2"',
        ),
        (
            {"model_config.feature_groups[0].feature_names[+]": ["x", "y"]},
            '-  + feature_names: "x" feature_names: "y"',
        ),
        ({"feature_configs[2].id_feature.vocab_dict[b]": 3}, '-  + vocab_dict { key: "b" value: 3 }'),
        ({"feature_configs[2].id_feature.vocab_dict[a]": 7}, "- value: 1 + value: 7"),
        ({"feature_configs[2].id_feature.vocab_dict": {"q": 3}}, '- key: "a" value: 1 + key: "q" value: 3'),
        (
            {"feature_configs[2].id_feature.vocab_dict": [{"key": "q", "value": 3}]},
            '- key: "a" value: 1 + key: "q" value: 3',
        ),
        (
            {"train_config.dense_optimizer": {"sgd_optimizer": {"lr": 1}}},
            "- adam_optimizer { lr: 0.1 + sgd_optimizer { lr: 1.0",
        ),
        (
            {"train_config.dense_optimizer": "{sgd_optimizer { lr: 1 }}"},
            "- adam_optimizer { lr: 0.1 + sgd_optimizer { lr: 1.0",
        ),
        (
            {"train_config.dense_optimizer": "sgd_optimizer { lr: 1 }"},
            "- adam_optimizer { lr: 0.1 + sgd_optimizer { lr: 1.0",
        ),
        (
            {"train_config.dense_optimizer": '{"sgdOptimizer": {"lr": 1}}'},
            "- adam_optimizer { lr: 0.1 + sgd_optimizer { lr: 1.0",
        ),
        (
            {"train_config.dense_optimizer.adamw_optimizer.lr": 0.5},
            "- adam_optimizer { lr: 0.1 + adamw_optimizer { lr: 0.5",
        ),
        ({"train_config.num_steps": None}, "- num_steps: 5 + "),
        ({"model_config.feature_groups[0].feature_names[0]": None}, '- feature_names: "price" + '),
        (
            {"model_config.feature_groups[0].feature_names[:]": None},
            '- feature_names: "price" feature_names: "cat_1" + ',
        ),
        ({"feature_configs[2].id_feature.vocab_dict[a]": None}, '- vocab_dict { key: "a" value: 1 } + '),
        (
            {"model_dir;train_config.num_steps": "b;7"},
            '- model_dir: "a" num_steps: 5 + model_dir: "b" num_steps: 7',
        ),
        ({"feature_configs[feature_name=a;b].lookup_feature.value_dim": 2}, "- value_dim: 1 + value_dim: 2"),
        ({"model_dir": "x", "model_dir ": "y"}, '- model_dir: "a" + model_dir: "y"'),
        (
            '{"model_dir": "b", "train_config.num_steps": 6}',
            '- model_dir: "a" num_steps: 5 + model_dir: "b" num_steps: 6',
        ),
        ({}, "-  + "),
    ],
    ids=str,
)
def test_edits(base: PipelineConfig, edits: Any, expected: str) -> None:
    assert changed(base, edits) == expected


UINT32 = "is not a whole number from 0 to 4294967295 (uint32)"


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("train_config.num_step", 1, "train_config: no field 'num_step'; did you mean 'num_steps'?"),
        (
            "train_config.dense_optimizer.adamv_optimizer.lr",
            1,
            "train_config.dense_optimizer: no optimizer 'adamv_optimizer'; did you mean 'adamw_optimizer'?",
        ),
        ("train_config.num_steps", "x", "'x' " + UINT32),
        ("train_config.num_steps", -1, "-1 " + UINT32),
        ("train_config.num_steps", "1_0", "'1_0' " + UINT32),
        ("train_config.num_steps", "٣", "'٣' " + UINT32),
        ("model_dir", 10**50, "a number of more than 30 digits is not text"),
        ("model_dir", True, "true is not text"),
        ("train_config.dense_optimizer.adam_optimizer.lr", "1e999", "'1e999' is too large for a float"),
        (
            "train_config.dense_optimizer.adam_optimizer.lr",
            10**400,
            "a number of more than 30 digits is not a number (float)",
        ),
        ("train_config.num_steps", 1.5, "1.5 " + UINT32),
        ("train_config.num_steps", True, "true " + UINT32),
        ("train_config.num_steps", [1], "a list of 1 " + UINT32),
        ("train_config.use_tensorboard", "yes", "'yes' is not true or false"),
        ("train_config.dense_optimizer.adam_optimizer.lr", "fast", "'fast' is not a number (float)"),
        (
            "model_config.feature_groups[0].group_type",
            "WIDEE",
            "no FeatureGroupType 'WIDEE'; did you mean 'WIDE'?",
        ),
        ("model_dir", {}, "a map of 0 is not text"),
        ("train_config", 5, "5 is not a TrainConfig"),
        ("train_config", {"num_stepz": 1}, "no field 'num_stepz'; did you mean 'num_steps'?"),
        ("feature_configs[0].raw_feature.boundaries", 5, "5 is not a list"),
        (
            "feature_configs[0].raw_feature.boundaries",
            [1, "x"],
            "feature_configs[0].raw_feature.boundaries[1]: 'x' is not a number (float)",
        ),
        ("feature_configs[9].id_feature.pooling", "x", "feature_configs has 4 items, so no [9]"),
        ("feature_configs[-5]", None, "feature_configs has 4 items, so no [-5]"),
        ("feature_configs[7:].id_feature.pooling", "x", "'feature_configs' matches nothing"),
        ("feature_configs[:].expr_feature.pooling", "x", "'expr_feature' matches nothing"),
        (
            "feature_configs[feature_name=cat_3].id_feature.pooling",
            "x",
            "no item of feature_configs meets [feature_name=cat_3]; did you mean 'cat_1'?",
        ),
        (
            "feature_configs[featur_name=cat_1].id_feature.pooling",
            "x",
            "no item of feature_configs has a value 'featur_name'; did you mean 'feature_name'?",
        ),
        (
            "feature_configs[embedding_dim>x].id_feature.pooling",
            "x",
            "'embedding_dim' cannot be compared: 'x' " + UINT32,
        ),
        (
            "feature_configs[feature_name>a].id_feature.pooling",
            "x",
            "'feature_name' is not a number, so it can only be compared by '='",
        ),
        (
            "feature_configs[id_feature=a].id_feature.pooling",
            "x",
            "'id_feature' is not one value that can be compared",
        ),
        ("feature_configs.id_feature.pooling", "x", "feature_configs is a list; say which items in brackets"),
        ("feature_configs[x].id_feature", {}, "feature_configs[x] is no number, slice or condition"),
        ("model_dir.x", 1, "model_dir holds text, which has no fields"),
        ("model_dir[0]", 1, "model_dir is not a list"),
        ("model_dir[+]", 1, "model_dir is not a list, so nothing can be appended"),
        ("feature_configs[+]", None, "null cannot be appended"),
        ("feature_configs[+].id_feature", {}, "'[+]' belongs at the end of a path"),
        (
            "feature_configs[2].id_feature.vocab_dict[b]",
            None,
            "feature_configs[2].id_feature.vocab_dict has no key 'b'",
        ),
        (
            "feature_configs[2].id_feature.vocab_dict[0:1]",
            1,
            "feature_configs[2].id_feature.vocab_dict is a map; name one key in the brackets",
        ),
        (
            "feature_configs[2].id_feature.vocab_dict",
            [{"key": "q", "value": 3}, {"key": "q", "value": 4}],
            "key 'q' is given twice",
        ),
        (
            "feature_configs[2].id_feature.vocab_dict",
            [{"key": ["q"], "value": 3}],
            "key a list of 1: a list of 1 is not text",
        ),
        ("a[0", 1, "a '[' is not closed"),
        ("a[0][1]", 1, "'a[0][1]': one pair of brackets belongs at the end of a name"),
        ("a[]", 1, "'[]' is empty; write [0], [1:3], [:], [name=value] or [+]"),
        ("", 1, "a field name is missing"),
        ("train_config..num_steps", 1, "a field name is missing"),
        ("train config", 1, "'train config' is not a field name"),
        (
            "train_config.dense_optimizer",
            "adam { lr",
            "'{adam { lr}' is neither JSON nor text format (no optimizer 'adam'; did you mean "
            "'adam_optimizer'?)",
        ),
    ],
    ids=str,
)
def test_edits_that_cannot_be_made(base: PipelineConfig, path: str, value: Any, expected: str) -> None:
    assert error_of(base, {path: value}) == f"edit {path!r}: {expected}"


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        (
            {"data_config.fg_encoded": True, "data_config.fg_mode": "FG_DAG"},
            "data_config.fg_encoded: true contradicts fg_mode: FG_DAG; keep fg_mode alone",
        ),
        ("[1]", "edits: expected a JSON object of paths and values, got a list of 1"),
        ('{"a": 1, "a": 2}', "edits: key 'a' is given twice in one JSON object; keep one"),
    ],
)
def test_sets_of_edits_that_cannot_be_made(base: PipelineConfig, edits: Any, expected: str) -> None:
    assert error_of(base, edits) == expected


def test_items_are_replaced_whole(base: PipelineConfig) -> None:
    edited = edit_config(base, {"feature_configs[0]": {"id_feature": {"feature_name": "p"}}})
    assert edited.feature_configs[0] == FeatureConfig(id_feature={"feature_name": "p"})  # type: ignore[arg-type]
    assert edited.feature_configs[1:] == base.feature_configs[1:]


def test_all_bad_edits_are_reported_and_none_is_made(base: PipelineConfig) -> None:
    edits = {"model_dir": "b", "nothing": 1, "train_config.num_steps": "x"}
    assert error_of(base, edits).splitlines() == [
        "edit 'nothing': no field 'nothing' in PipelineConfig",
        "edit 'train_config.num_steps': 'x' is not a whole number from 0 to 4294967295 (uint32)",
    ]


@pytest.mark.parametrize(
    ("fg_mode", "edits", "expected"),
    [
        (FG_NONE, {"data_config.fg_encoded": False}, FG_DAG),
        (FG_DAG, {"data_config.fg_encoded": True}, FG_NONE),
        (FG_NORMAL, {"data_config.fg_encoded": False}, FG_DAG),
        (FG_DAG, {"data_config.fg_encoded": False, "data_config.fg_mode": "FG_NORMAL"}, FG_NORMAL),
    ],
)
def test_edits_of_fg_encoded_become_fg_mode(
    base: PipelineConfig, fg_mode: Any, edits: dict[str, Any], expected: int
) -> None:
    base.data_config.fg_mode = fg_mode
    edited = edit_config(base, edits)
    assert edited.data_config.fg_mode == expected
    assert not edited.data_config.HasField("fg_encoded")


def test_edited_fields_lose_their_lines(tmp_path: Any) -> None:
    path = tmp_path / "x.config"
    path.write_text(BASE)
    loaded = load_with_locations(path)
    edits = {"train_config.num_steps": 9, "feature_configs[1]": None}
    edit_config(loaded.message, edits, locations=loaded.locations)
    assert loaded.locations.line("train_config.num_steps") is None
    assert loaded.locations.line("feature_configs[2].id_feature") is None
    assert loaded.locations.line("train_config.dense_optimizer") == 4


def test_conditions_on_floats_compare_as_the_field_keeps_them() -> None:
    config = load_config({"model_config": {"mmoe": {"task_towers": [{"weight": 0.1}, {"weight": 0.2}]}}})
    edited = edit_config(config, {"model_config.mmoe.task_towers[weight=0.1].tower_name": "x"})
    assert [tower.tower_name for tower in edited.model_config.mmoe.task_towers] == ["x", ""]
    # a field that is not set counts with its default
    edited = edit_config(config, {"model_config.mmoe.task_towers[num_class=1].tower_name": "x"})
    assert [tower.tower_name for tower in edited.model_config.mmoe.task_towers] == ["x", "x"]


def timed(config: PipelineConfig, edits: Any) -> str:
    start = time.process_time()
    message = ""
    try:
        edit_config(config, edits)
    except ConfigError as error:
        message = str(error)
    assert time.process_time() - start < 6
    assert len(message) < 20_000
    return message


def test_many_edits_end_quickly(base: PipelineConfig) -> None:
    million = {f"train_config.a{i}": i for i in range(1_000_000)}
    assert timed(base, million) == "edits: 1000000 paths are more than 10000; edit the file instead"
    assert timed(base, json.dumps(million)).startswith("edits: the JSON is longer than 4 MB")
    several = {f"train_config.num_steps{' ' * (i % 900)}": i for i in range(900)}
    assert timed(base, several) == ""
    many = MAX_EDITS + 1
    joined = {";".join(["train_config.num_steps"] * many): ";".join(["1"] * many)}
    with pytest.raises(ConfigError, match=f"{many} paths are more than {MAX_EDITS}"):
        edit_config(PipelineConfig(), joined)
    wrong = {f"a{i}": i for i in range(MAX_EDITS)}
    assert timed(base, wrong).endswith("edits: further problems are not shown")
    features = {"feature_configs": [{"id_feature": {"feature_name": f"cat_{i}"}} for i in range(5000)]}
    paths = {f"feature_configs[feature_name=cat_{i}].id_feature.embedding_dim": i for i in range(5000)}
    assert timed(load_config(features), paths).startswith("edits: they look at more than 500000 places")
    assert timed(base, {"x" * 100_000: 1}).endswith("is longer than 1000 characters")
    assert timed(base, {"model_dir": "x" * 5_000_000}) == ""


def test_locations_are_optional(base: PipelineConfig, nowhere: Locations) -> None:
    assert edit_config(base, {"model_dir": "b"}, locations=nowhere).model_dir == "b"
