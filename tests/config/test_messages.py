from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.config import PipelineConfig, chosen, load_config, struct_to_dict, to_kwargs
from recgrad.config.messages import shortest_float
from recgrad.config.proto.component_pb2 import CustomComponent
from recgrad.config.proto.feature_pb2 import IdFeature
from recgrad.config.proto.model_pb2 import FeatureGroupConfig
from recgrad.config.proto.optimizer_pb2 import AdamOptimizer, OneCycleLR


def test_defaults_are_filled_in_and_floats_read_as_written() -> None:
    kwargs = to_kwargs(AdamOptimizer(lr=0.001))
    assert kwargs == {
        "lr": 0.001,
        "beta1": 0.9,
        "beta2": 0.999,
        "weight_decay": 0.0,
        "eps": 1e-8,
        "amsgrad": False,
        "fused": False,
    }


def test_unset_fields_without_a_default_are_left_to_the_receiver() -> None:
    assert "max_lr" not in to_kwargs(OneCycleLR())
    assert to_kwargs(OneCycleLR(max_lr=0))["max_lr"] == 0


def test_lists_maps_and_enums() -> None:
    kwargs = to_kwargs(IdFeature(vocab_list=["a"], vocab_dict={"b": 2}))
    assert kwargs["vocab_list"] == ["a"]
    assert kwargs["vocab_dict"] == {"b": 2}
    assert to_kwargs(FeatureGroupConfig(feature_names=["a", "b"]))["group_type"] == "DEEP"


def test_free_form_parameters_become_a_dict_of_what_was_written() -> None:
    message = CustomComponent(class_path="a.B")
    message.params.update({"n": 3, "rate": 0.5, "layers": [1, {"units": 2}], "on": True, "none": None})
    expected = {"n": 3, "rate": 0.5, "layers": [1, {"units": 2}], "on": True, "none": None}
    assert struct_to_dict(message.params) == expected
    assert to_kwargs(message)["params"] == expected
    assert isinstance(expected["n"], int)


def test_the_chosen_member_of_a_oneof() -> None:
    config = load_config({"model_config": {"deepfm": {}}})
    choice = chosen(config.model_config, "model")
    assert choice is not None
    assert choice[0] == "deepfm"
    assert choice[1] == config.model_config.deepfm
    assert chosen(PipelineConfig().model_config, "model") is None


@settings(max_examples=200, deadline=None)
@given(st.floats(width=32, allow_nan=False))
def test_the_shortest_decimal_reads_back_as_the_same_float(value: float) -> None:
    short = shortest_float(value)
    assert AdamOptimizer(lr=short).lr == value
    assert len(repr(short)) <= len(repr(value))


@pytest.mark.parametrize("text", ["0.1", "0.001", "1e-10", "123456.7", "3e+30"])
def test_what_a_user_writes_comes_back(text: str) -> None:
    assert shortest_float(AdamOptimizer(lr=float(text)).lr) == float(text)
