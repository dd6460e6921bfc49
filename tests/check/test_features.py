"""Checks of features and their tables."""

# One line a case: the expected messages are kept whole.
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recgrad.check import check_rules
from recgrad.config import edit_config, load_with_locations

Problems = Callable[..., list[str]]
CAT = "feature_configs[13].id_feature"
INT = "feature_configs[0].raw_feature"


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ({f"{CAT}.num_buckets": None}, [f"{CAT}: one of num_buckets, hash_bucket_size, vocab_list, vocab_dict, vocab_file, zch, dynamicemb is needed"]),
        ({f"{CAT}.hash_bucket_size": 5}, [f"{CAT}: num_buckets and hash_bucket_size are both set; keep one"]),
        ({f"{CAT}.num_buckets": 0}, [f"{CAT}.num_buckets: must be in [1, 9223372036854775807], got 0"]),
        ({f"{CAT}.embedding_dim": 0}, [f"{CAT}.embedding_dim: ids need an embedding_dim of at least 1"]),
        ({f"{CAT}.pooling": "max"}, [f"{CAT}.pooling: must be one of 'sum', 'mean', got 'max'"]),
        ({f"{CAT}.pooling": "MEAN"}, []),
        ({f"{CAT}.data_type": "FP8"}, [f"{CAT}.data_type: must be one of 'FP32', 'FP16', 'BF16', got 'FP8'"]),
        ({f"{CAT}.init_fn": "nn.init.uniform,a=1"}, [f"{CAT}.init_fn: no initialiser 'uniform'; did you mean 'uniform_'?"]),
        ({f"{CAT}.init_fn": "nn.init.uniform_,c=1"}, [f"{CAT}.init_fn: no argument of uniform_ 'c' (has: a, b)"]),
        ({f"{CAT}.init_fn": "nn.init.uniform_,a"}, [f"{CAT}.init_fn: must read like 'nn.init.uniform_,a=-0.01,b=0.01', got 'nn.init.uniform_,a'"]),
        ({f"{CAT}.init_fn": "nn.init.uniform_,a=-0.1,b=0.1"}, []),
        ({f"{CAT}.sequence_length": 5}, [f"{CAT}.sequence_length: belongs to a sequence_id_feature; remove it here"]),
        ({f"{CAT}.sequence_fields": ["a"]}, [f"{CAT}.sequence_fields: is for sequence features; remove it"]),
        ({f"{CAT}.default_bucketize_value": 5}, [f"{CAT}.default_bucketize_value: needs vocab_list, vocab_dict or vocab_file; it is for their words"]),
        ({f"{CAT}.num_buckets": None, f"{CAT}.vocab_list": ["a", "a"]}, [f"{CAT}.vocab_list[1]: word 'a' is given twice; keep one"]),
        ({f"{CAT}.num_buckets": None, f"{CAT}.vocab_file": "a"}, [f"{CAT}: vocab_file needs default_bucketize_value, the id of words not in the file"]),
        ({f"{INT}.boundaries": [1, 1], f"{INT}.embedding_dim": 4}, [f"{INT}.boundaries[1]: must rise, got 1 before 1"]),
        ({f"{INT}.boundaries": [1, 2]}, [f"{INT}: ids need an embedding_dim of at least 1"]),
        ({f"{INT}.boundaries": [1, "nan"], f"{INT}.embedding_dim": 4}, [f"{INT}.boundaries: must be a finite number, got nan"]),
        ({f"{INT}.mlp": {}}, [f"{INT}: mlp needs an embedding_dim of at least 1"]),
        ({f"{INT}.boundaries": [1], f"{INT}.embedding_dim": 4, f"{INT}.mlp": {}}, [f"{INT}.mlp: is for float values, but this feature makes ids; keep one"]),
        ({f"{INT}.autodis": {"num_channels": 0}, f"{INT}.embedding_dim": 4}, [f"{INT}.autodis.num_channels: must be at least 1, got 0"]),
        ({f"{INT}.value_dim": 0}, [f"{INT}.value_dim: must be at least 1, got 0"]),
        ({f"{CAT}.embedding_name": "x", "feature_configs[14].id_feature.embedding_name": "x"}, ["feature_configs[14].id_feature.embedding_name: cannot share 'x' with 'cat_0': the number of rows is 200 here and 100 there"]),
    ],
    ids=str,
)  # fmt: skip
def test_features(problems: Problems, edits: dict[str, Any], expected: list[str]) -> None:
    # the widths of DeepFM's fields are another rule
    assert [line for line in problems(edits) if "equal width" not in line] == expected


def test_features_are_defined_once(example: Callable[[str], Path]) -> None:
    loaded = load_with_locations(example("mmoe_taobao"))
    edited = edit_config(loaded.message, {"feature_configs[1].id_feature.feature_name": "user_id"})
    lines = [str(problem) for problem in check_rules(edited, locations=loaded.locations).problems]
    assert lines[0] == (
        "mmoe_taobao.config:41 feature_configs[1].id_feature.feature_name: "
        "'user_id' is defined twice, first on line 32; rename one"
    )


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("feature_configs[0].id_feature.expression", None, "feature_configs[0].id_feature.expression: is required"),
        ("feature_configs[0].id_feature.expression", "usr:user_id", "feature_configs[0].id_feature.expression: must read side:name with a side of user, item, context, feature, const, got 'usr:user_id'; did you mean 'user'?"),
        ("feature_configs[0].id_feature.expression", "user:", "feature_configs[0].id_feature.expression: must read side:name with a side of user, item, context, feature, const, got 'user:'"),
        ("feature_configs[0].id_feature.expression", "feature:agee", "feature_configs[0].id_feature.expression: no feature 'agee'; did you mean 'age'?"),
        ("feature_configs[0].id_feature.expression", "feature:age", None),
        ("feature_configs[0].id_feature.expression", "user_id", None),
    ],
)  # fmt: skip
def test_feature_inputs(problems: Problems, path: str, value: Any, expected: str | None) -> None:
    assert problems({path: value}, "mmoe_taobao") == ([] if expected is None else [expected])


def test_an_embedding_dim_of_plain_numbers_is_a_hint(hints: Callable[..., list[str]]) -> None:
    assert hints({f"{INT}.embedding_dim": 4})[0] == (
        f"{INT}.embedding_dim: has no effect: without boundaries, mlp or autodis the numbers are used as they are"
    )


def test_an_unused_feature_needs_no_embedding_dim(problems: Callable[..., list[str]]) -> None:
    unused = {
        "feature_configs[+]": {"id_feature": {"feature_name": "u", "expression": "u", "num_buckets": 9}}
    }
    assert problems(unused) == []
    wide = {**unused, "model_config.feature_groups[0].feature_names[+]": "u"}
    assert problems(wide) == []  # a WIDE group has a width of its own
    deep = {**unused, "model_config.feature_groups[group_name=deep].feature_names[+]": "u"}
    assert [line.partition("]")[2] for line in problems(deep)] == [
        ".id_feature: ids need an embedding_dim of at least 1"
    ]


def test_an_overlap_that_is_read_encoded_needs_no_method(problems: Callable[..., list[str]]) -> None:
    overlap = {
        "feature_configs[+]": {"overlap_feature": {"feature_name": "o", "query": "user:q", "title": "item:t"}}
    }
    (problem,) = problems(overlap, base="multi_tower_din_taobao")
    assert problem.endswith("overlap_feature.method: is required")
    assert problems({**overlap, "data_config.fg_mode": "FG_NONE"}) == []


HASHED = {f"{CAT}.num_buckets": None, f"{CAT}.hash_bucket_size": 100, "data_config.fg_mode": "FG_DAG"}


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ({**HASHED, "data_config.hash": "MURMUR64"}, []),
        ({**HASHED, f"{CAT}.hash": "XXH64"}, []),
        ({**HASHED, "data_config.hash": "MURMUR64", "data_config.fg_mode": "FG_NONE"}, ["data_config.hash: has no effect: fg_mode FG_NONE reads ids as they are; remove it"]),
        ({"data_config.hash": "MURMUR64", "data_config.fg_mode": "FG_DAG"}, ["data_config.hash: has no effect: no feature has hash_bucket_size; remove it"]),
        ({f"{CAT}.hash": "MURMUR64", "data_config.fg_mode": "FG_DAG"}, [f"{CAT}.hash: has no effect: it needs hash_bucket_size; remove it"]),
    ],
    ids=str,
)  # fmt: skip
def test_hashes(problems: Problems, edits: dict[str, Any], expected: list[str]) -> None:
    assert [line for line in problems(edits) if "hash" in line] == expected


@pytest.mark.parametrize(("variable", "refused"), [("true", True), ("false", False), ("", False)])
def test_farm_hash_of_the_environment_is_not_ignored(
    problems: Problems, monkeypatch: pytest.MonkeyPatch, variable: str, refused: bool
) -> None:
    monkeypatch.setenv("USE_FARM_HASH_TO_BUCKETIZE", variable)
    lines = problems({**HASHED, "data_config.hash": "MURMUR64"})
    assert any("FarmHash is not available" in line for line in lines) == refused
    assert not any("FarmHash" in line for line in problems(HASHED))


COMBINED = {"combine_feature": {"feature_name": "x", "expression": "user:x", "combiner": "avg"}}
LOOKED_UP = {"lookup_feature": {"feature_name": "x", "map": "user:m", "key": "item:k", "combiner": ""}}


@pytest.mark.parametrize(
    ("feature", "combiner", "fine"),
    [
        *((feature, name, True) for feature in (COMBINED, LOOKED_UP) for name in ("avg", "count", "MEAN")),
        (LOOKED_UP, "", True),
        (COMBINED, "", False),
        (COMBINED, "gap_min", False),
        (LOOKED_UP, "median", False),
    ],
)
def test_combiners(problems: Problems, feature: dict, combiner: str, fine: bool) -> None:
    ((kind, fields),) = feature.items()
    lines = problems({"feature_configs[0]": {kind: {**fields, "combiner": combiner}}})
    assert any("combiner" in line for line in lines) != fine
