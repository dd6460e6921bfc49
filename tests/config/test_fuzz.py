"""Hostile input: loading, editing and checking give a result or an error of ours, in a few seconds."""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from recgrad.check import check_rules
from recgrad.config import PipelineConfig, edit_config, load_config, load_with_locations, save_config
from recgrad.errors import RecgradError

DATA = Path(__file__).parent / "data"
TEXTS = {path.stem: path.read_bytes() for path in sorted(DATA.glob("*.config"))}
BASE = load_config(DATA / "dssm_taobao.config")
SECONDS = 8
LOOSE = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def survives(action: Callable[[], Any]) -> Any:
    """The result, or None after an error of ours that is short enough to read."""
    start = time.process_time()
    result, message = None, ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = action()
        except RecgradError as error:
            message = str(error)
            assert message
    assert time.process_time() - start < SECONDS
    assert len(message) < 50_000
    return result


def load_and_check(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.config"
        path.write_bytes(data)
        loaded = survives(lambda: load_with_locations(path))
        if loaded is None:
            return
        report = survives(lambda: check_rules(loaded.message, locations=loaded.locations))
        assert report is not None
        assert len(str(report)) < 500_000
        # what was loaded can be written and read again
        saved = Path(folder) / "saved.config"
        save_config(loaded.message, saved)
        if saved.stat().st_size > 1:
            again = load_config(saved)
            assert str(again) == str(loaded.message)


@LOOSE
@given(st.binary(max_size=300))
@example(b"\x00")
@example(b"\xef\xbb\xbf")
@example(b"\xef\xbb\xbf\xff")
@example(b"\xff\xfe")
@example("model_dir: 'модель'".encode("cp1251"))
@example(b'model_dir: "\xed\xa0\x80"')
@example(b"{")
@example(b"[")
@example(b"train_config { num_steps: 99999999999999999999 }")
@example(b"train_config { dense_optimizer { adam_optimizer { lr: nan beta1: inf eps: -inf } } }")
def test_bytes(data: bytes) -> None:
    load_and_check(data)


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """An example config with pieces cut out, doubled, or overwritten."""
    data = bytearray(TEXTS[draw(st.sampled_from(sorted(TEXTS)))])
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 40))
        piece = draw(
            st.one_of(
                st.binary(max_size=4),
                st.sampled_from(
                    [b"{", b"}", b"[", b'"', b"'", b":", b"nan", b"-1", b"1e999", b"0", b"\\", b"#"]
                ),
                st.just(bytes(data[start : start + length])),
            )
        )
        data[start : start + draw(st.sampled_from([0, length]))] = piece
    return bytes(data)


@LOOSE
@given(mutations())
def test_mutated_configs(data: bytes) -> None:
    load_and_check(data)


NAMES = [
    "model_dir", "train_config", "trainConfig", "num_steps", "feature_configs", "id_feature", "feature_name",
    "dense_optimizer", "adam_optimizer", "lr", "model_config", "feature_groups", "feature_names",
    "operator_params", "custom_feature",
    "vocab_dict", "boundaries", "data_config", "fg_mode", "losses", "mmoe", "task_towers",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(NAMES),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


@LOOSE
@given(JSON)
def test_json(tree: Any) -> None:
    load_and_check(json.dumps(tree).encode())
    if isinstance(tree, dict):
        loaded = survives(lambda: load_config(tree))
        if loaded is not None:
            assert survives(lambda: check_rules(loaded)) is not None


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(50, 200_000),
    st.sampled_from(["{", "[", '{"a":', "train_config {", "a <", "a: [", "'", "\\", "-", "#\n"]),
)
def test_deep_nesting(depth: int, piece: str) -> None:
    text = (piece * depth)[: 2**21]
    load_and_check(text.encode())
    survives(lambda: edit_config(BASE, text))
    survives(lambda: edit_config(BASE, {"train_config": text}))


def set_floats(message: Any, value: float) -> None:
    """Every float of a message that is set, set to one value."""
    for field, item in message.ListFields():
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry:
                continue
            for child in item if field.is_repeated else [item]:
                set_floats(child, value)
        elif field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
            if field.is_repeated:
                item[:] = [value] * len(item)
            else:
                setattr(message, field.name, value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_rates_that_are_no_numbers_are_all_refused(value: float) -> None:
    config = PipelineConfig()
    config.CopyFrom(BASE)
    config.model_config.dssm.temperature = 1
    set_floats(config, value)
    lines = [str(problem) for problem in check_rules(config).problems]
    refused = [line.split(":")[0] for line in lines if "must be a finite number" in line]
    assert sorted(refused) == [
        "feature_configs[12].raw_feature.boundaries",
        "model_config.dssm.temperature",
        "train_config.dense_optimizer.adam_optimizer.lr",
        "train_config.sparse_optimizer.adagrad_optimizer.lr",
    ]


STEPS = st.sampled_from(
    [
        "feature_configs", "feature_configs[0]", "feature_configs[:]", "feature_configs[feature_name=age]",
        "feature_configs[+]", "feature_configs[-1]", "feature_configs[embedding_dim>=8]", "id_feature",
        "sequence_feature", "features[1:]", "train_config", "dense_optimizer", "adam_optimizer",
        "sgd_optimizer", "lr", "model_config", "feature_groups[0]", "feature_names[+]", "feature_names",
        "vocab_dict[a]",
        "vocab_dict", "num_steps", "model_dir", "data_config",
        "fg_mode", "fg_encoded", "expression",
        "[", "]", "",
    ]
)  # fmt: skip
PATHS = st.lists(STEPS, min_size=1, max_size=4).map(".".join) | st.text(max_size=20)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(PATHS, JSON, max_size=4))
@example({"feature_configs[+]": {"id_feature": {"vocab_dict": {"a": -1}}}})
@example({"feature_configs[:]": None, "feature_configs[0]": None})
@example({"train_config.num_steps": float("nan")})
@example({"train_config.num_steps": 10**400})
@example({"model_dir": "\ud800"})
@example({"feature_configs[0].id_feature.vocab_dict[\ud800]": 1})
def test_edits(edits: dict[str, Any]) -> None:
    untouched = BASE.SerializePartialToString(deterministic=True)
    edited = survives(lambda: edit_config(BASE, edits))
    survives(lambda: edit_config(BASE, json.dumps(edits)))
    assert BASE.SerializePartialToString(deterministic=True) == untouched
    if edited is not None:
        assert survives(lambda: check_rules(edited)) is not None


@LOOSE
@given(st.text(max_size=60))
def test_edits_that_are_any_text(text: str) -> None:
    survives(lambda: edit_config(BASE, text))


def test_a_million_edit_paths() -> None:
    paths = {f"feature_configs[{i}].id_feature.embedding_dim": i for i in range(1_000_000)}
    assert survives(lambda: edit_config(BASE, paths)) is None
    assert survives(lambda: edit_config(BASE, json.dumps(paths))) is None


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_message_can_be_checked(configs: st.SearchStrategy[PipelineConfig], data: st.DataObject) -> None:
    config = data.draw(configs)
    available = {"model": ["deepfm"], "feature": ["id_feature", "sequence_feature"], "loss": []}
    for options in ({}, {"available": available, "rows": 1000, "ranks": 0, "cpu_flags": []}):
        report = survives(lambda options=options: check_rules(config, **options))
        assert report is not None
        assert report.problems
