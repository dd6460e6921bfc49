"""Reading text format and JSON, against protobuf's own."""

from __future__ import annotations

import pytest
from google.protobuf import json_format, text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recgrad.config import PipelineConfig
from recgrad.config.json_source import parse_json
from recgrad.config.proto.feature_pb2 import CustomFeature
from recgrad.config.text_source import parse_text
from recgrad.errors import ConfigError

STYLES = [{}, {"as_one_line": True}, {"as_utf8": True}, {"use_short_repeated_primitives": True}]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from(STYLES))
def test_reads_whatever_protobuf_writes(
    configs: st.SearchStrategy[PipelineConfig], data: st.DataObject, style: dict[str, bool]
) -> None:
    message = data.draw(configs)
    text = text_format.MessageToString(message, **style)  # type: ignore[arg-type]
    read = PipelineConfig()
    parse_text(text, read, "x")
    assert read == message


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.booleans())
def test_reads_whatever_protobuf_writes_as_json(
    configs: st.SearchStrategy[PipelineConfig], data: st.DataObject, snake_case: bool
) -> None:
    message = data.draw(configs)
    read = PipelineConfig()
    parse_json(json_format.MessageToJson(message, preserving_proto_field_name=snake_case), read, "x")
    assert read == message


VALID = [
    "model_dir: 'a' 'b'\n\"c\"",
    "model_dir:'a';train_input_path:'b',eval_input_path:'c'",
    "train_config < num_steps: 0x1F > # comment { }",
    "train_config { num_steps: 017 }",
    "train_config: { num_steps: 5 }",
    "feature_configs { raw_feature { boundaries: [1, -2.5, 3e4, .5, 5., 1f, inf, -inf] } }",
    "feature_configs { raw_feature { boundaries: 1 boundaries: -2 } }",
    "feature_configs [{ raw_feature {} }, < id_feature {} >]",
    "feature_configs: []",
    "feature_configs { id_feature { vocab_dict: [{key: 'a' value: 2}, {key: 'b' value: 3}] } }",
    "feature_configs { id_feature { vocab_dict { key: 'a' value: 2 } vocab_dict { value: 1 key: 'b' } } }",
    "feature_configs { id_feature { vocab_dict { key: 'a' } } }",
    r"model_dir: '\n\t\\\'\"\x41\101\u4e2d\U0001F600\xe4\xb8\xad'",
    "train_config { use_tensorboard: t is_profiling: False cudnn_allow_tf32: 1 }",
    "data_config { fg_mode: 3 dataset_type: CsvDataset }",
    "model_config { feature_groups { group_name: 'a' } } model_config { num_class: 2 }",
    "train_config { dense_optimizer { adam_optimizer { lr: 1.5e-3f } } }",
    "train_config { dense_optimizer { adam_optimizer { lr: nan } } }",
    "feature_configs { custom_feature { operator_params { fields { key: 'a' value { bool_value: t } } } } }",
]


@pytest.mark.parametrize("text", VALID)
def test_reads_all_of_the_syntax(text: str) -> None:
    read = PipelineConfig()
    parse_text(text, read, "x")
    assert str(read) == str(text_format.Merge(text, PipelineConfig()))


PIECES = [
    "model_dir", "train_config", "num_steps", "feature_configs", "id_feature", "boundaries", "raw_feature",
    "vocab_dict", "key", "value", "{", "}", "<", ">", "[", "]", ":", ",", ";", "-", "'a'", '"b"', "5", "1.5",
    "true", "inf", "DEEP", "#x\n", "'", "\\", "0x1", "08", "$", "\n", " ",
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map(" ".join))
def test_what_it_accepts_protobuf_accepts_alike(text: str) -> None:
    read = PipelineConfig()
    try:
        parse_text(text, read, "x")
    except ConfigError:
        return
    assert read == text_format.Merge(text, PipelineConfig())


def test_reads_messages_of_any_type() -> None:
    message = CustomFeature()
    parse_text("feature_name: 'a' expression: ['b', 'c']", message, "x")
    assert list(message.expression) == ["b", "c"]


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("3.4028235e+38", True),
        ("3.4028236e+38", False),
        ("-1e39", False),
        ("1e999", False),
        ("0x" + "f" * 390, False),
    ],
)
def test_floats_that_would_become_infinite_are_refused(text: str, fits: bool) -> None:
    message = PipelineConfig()
    source = f"train_config {{ dense_optimizer {{ ema {{ decay: {text} }} }} }}"
    if fits:
        parse_text(source, message, "x")
        assert message.train_config.dense_optimizer.ema.decay == pytest.approx(float(text))
    else:
        with pytest.raises(ConfigError, match="is too large for a float"):
            parse_text(source, message, "x")


def test_entries_of_a_struct_have_keys_of_their_own() -> None:
    """A Struct is proto3, where a key has no presence, and all entries have one path."""
    text = (
        'model_config { custom_model { class_path: "a.B" params { '
        'fields { key: "x" value { number_value: 1 } } fields { key: "y" value { bool_value: true } } } } }'
    )
    read = PipelineConfig()
    parse_text(text, read, "x")
    assert dict(read.model_config.custom_model.params) == {"x": 1, "y": True}
    twice = text.replace('"y"', '"x"')
    with pytest.raises(ConfigError, match="key 'x' is given twice"):
        parse_text(twice, PipelineConfig(), "x")
    twice = text.replace('key: "y"', 'key: "y" key: "z"')
    with pytest.raises(ConfigError, match="'key' is set twice"):
        parse_text(twice, PipelineConfig(), "x")
