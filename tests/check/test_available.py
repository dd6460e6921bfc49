"""Checks of what this build has: the rest is refused by name, and not looked into."""

# One line a case: the expected messages are kept whole.
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from recgrad.check import check_rules
from recgrad.check.unsupported import KINDS, UNSUPPORTED
from recgrad.config import PipelineConfig
from recgrad.config.proto import data_pb2, model_pb2, optimizer_pb2

Problems = Callable[..., list[str]]
TRAIN = "train_config"
DENSE = "train_config.dense_optimizer"
MODEL = "model_config"
GROUPS = "model_config.feature_groups"


def test_what_is_not_available_is_named_and_not_looked_into(problems: Problems) -> None:
    broken = {f"{MODEL}.deepfm.deep": None, f"{DENSE}.adam_optimizer.lr": "nan"}
    available = {"model": ["dlrm", "dcn_v1"], "dense_optimizer": {"sgd_optimizer"}, "reader": ["CsvDataset"]}
    assert problems(broken, available=available) == [
        "train_config.dense_optimizer.adam_optimizer: "
        "'adam_optimizer' is not supported yet; available: sgd_optimizer",
        "model_config.deepfm: 'deepfm' is not supported yet; available: dcn_v1, dlrm",
        "data_config.dataset_type: 'ParquetDataset' is not supported yet; available: CsvDataset",
    ]


def test_naming_a_refused_feature_is_no_second_problem(problems: Problems) -> None:
    edits = {f"{GROUPS}[2].feature_names[0]": "int_99"}
    got = problems(edits, available={"feature": ["id_feature"]})
    refused = [line for line in got if "'raw_feature' is not supported yet; available: id_feature" in line]
    assert len(refused) == 13
    assert [line for line in got if line not in refused] == [
        f"{GROUPS}[2].feature_names[0]: no feature 'int_99' (has: cat_0, cat_1, cat_10, cat_11, cat_12, cat_13, "
        "cat_14, cat_15, cat_16, cat_17, cat_18, cat_19 …)"
    ]


def test_every_kind_of_component_can_be_unavailable(problems: Problems) -> None:
    edits = {
        f"{MODEL}.dssm.in_batch_negative": True,
        f"{MODEL}.train_metrics": [{"recall_at_k": {}}],
    }
    everything = {kind: [] for kind in {*KINDS.values(), "reader"}}
    refused = problems(edits, "dssm_taobao", available=everything)
    assert all(line.endswith("is not supported yet; available: none") for line in refused)
    named = {line.split("'")[1] for line in refused}
    assert named >= {
        "adam_optimizer", "adagrad_optimizer", "constant_learning_rate", "softmax_cross_entropy", "recall_at_k",
        "dssm", "id_feature", "sequence_feature", "pooling_encoder", "negative_sampler", "ParquetDataset",
    }  # fmt: skip


def test_every_name_of_the_schema_can_be_available(config: PipelineConfig) -> None:
    names: dict[str, set[str]] = {"reader": set(data_pb2.DatasetType.keys())}
    for message in (
        *optimizer_pb2.DESCRIPTOR.message_types_by_name.values(),
        model_pb2.ModelConfig.DESCRIPTOR,
    ):
        for oneof in message.oneofs:
            kind = KINDS.get((message.name, oneof.name))
            if kind:
                names.setdefault(kind, set()).update(field.name for field in oneof.fields)
    assert check_rules(config, available=names).ok


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (f"{MODEL}.kernel", "TRITON", None),
        (f"{MODEL}.kernel", "PYTORCH", None),
        (f"{TRAIN}.save_checkpoints_timestamps", [5], "rows have no times; name their column in data_config.timestamp_field"),
        (f"{TRAIN}.save_checkpoints_timestamp_quorum", 0, "must be above 0 and at most 1, got 0"),
        (f"{TRAIN}.save_checkpoints_timestamp_interval", 0, None),
        (f"{TRAIN}.delta_embedding_dump_config", {}, None),
    ],
    ids=str,
)  # fmt: skip
def test_fields_that_nothing_implements(
    problems: Problems, path: str, value: Any, expected: str | None
) -> None:
    assert problems({path: value}) == ([] if expected is None else [f"{path}: {expected}"])


def test_the_table_of_unsupported_fields_names_fields_that_exist() -> None:
    fields: dict[str, set[str]] = {}
    stack: list[Any] = [PipelineConfig.DESCRIPTOR]
    while stack:
        message = stack.pop()
        if message.name not in fields:
            fields[message.name] = set(message.fields_by_name)
            stack += [field.message_type for field in message.fields if field.message_type is not None]
    for entry in UNSUPPORTED:
        message, _, field = entry.partition(".")
        known = set().union(*fields.values()) if message == "*" else fields[message]
        assert field in known, entry
    for message, oneof in KINDS:
        assert message in fields, (message, oneof)
