"""The parser of text format against protobuf's own."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recgrad.config import PipelineConfig
from recgrad.config.proto.feature_pb2 import CustomFeature
from recgrad.config.text_source import parse_text
from recgrad.errors import ConfigError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32, allow_nan=False),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: TEXTS,
}


def draw_message(draw: st.DrawFn, message: Any, depth: int = 0) -> None:
    """Set a few fields of a message at random, oneofs and maps too."""
    fields = list(message.DESCRIPTOR.fields)
    if fields:
        fields = draw(st.lists(st.sampled_from(fields), max_size=4, unique_by=lambda field: field.name))
    for field in fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entries = field.message_type.fields_by_name
            if entries["value"].message_type is None:
                for key in draw(st.lists(TEXTS, max_size=2, unique=True)):
                    getattr(message, field.name)[key] = draw(VALUES[entries["value"].type])
        elif field.message_type is not None:
            if field.message_type.full_name.startswith("google.") or depth > 4:
                continue
            if field.is_repeated:
                for _ in range(draw(st.integers(0, 2))):
                    draw_message(draw, getattr(message, field.name).add(), depth + 1)
            else:
                child = getattr(message, field.name)
                child.SetInParent()
                draw_message(draw, child, depth + 1)
        else:
            if field.enum_type is not None:
                value: Any = st.sampled_from([known.number for known in field.enum_type.values])
            else:
                value = VALUES[field.type]
            if field.is_repeated:
                getattr(message, field.name).extend(draw(st.lists(value, max_size=3)))
            else:
                setattr(message, field.name, draw(value))


@st.composite
def messages(draw: st.DrawFn) -> PipelineConfig:
    message = PipelineConfig()
    draw_message(draw, message)
    return message


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    messages(),
    st.sampled_from([{}, {"as_one_line": True}, {"as_utf8": True}, {"use_short_repeated_primitives": True}]),
)
def test_reads_whatever_protobuf_writes(message: PipelineConfig, style: dict[str, bool]) -> None:
    text = text_format.MessageToString(message, **style)  # type: ignore[arg-type]
    read = PipelineConfig()
    parse_text(text, read, "x")
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
