"""Configs that the tests of several rooms share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

from recgrad.config import PipelineConfig, load_config

DATA = Path(__file__).parent / "config" / "data"


@pytest.fixture
def example() -> Callable[[str], Path]:
    """The path of one of our example configs, by name."""
    return lambda name: DATA / f"{name}.config"


@pytest.fixture
def config() -> PipelineConfig:
    """A sound DeepFM config."""
    return load_config(DATA / "deepfm_criteo.config")


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


def _draw_message(draw: st.DrawFn, message: Any, depth: int = 0) -> None:
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
                    _draw_message(draw, getattr(message, field.name).add(), depth + 1)
            else:
                child = getattr(message, field.name)
                child.SetInParent()
                _draw_message(draw, child, depth + 1)
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
def _configs(draw: st.DrawFn) -> PipelineConfig:
    message = PipelineConfig()
    _draw_message(draw, message)
    return message


@pytest.fixture(scope="session")
def configs() -> st.SearchStrategy[PipelineConfig]:
    """Configs that set any fields of the schema at random; most are unsound."""
    return _configs()
