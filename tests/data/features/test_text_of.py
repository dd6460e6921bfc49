"""Texts and numbers of Python's and NumPy's own, against what Arrow makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.data.arrow_columns import as_array
from recgrad.data.features.columns import list_offsets
from recgrad.data.features.text import Text


@settings(deadline=None)
@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=5), max_size=6))
def test_words_are_the_texts_that_arrow_makes_of_them(words: list[str]) -> None:
    found, wanted = Text.of_words(words), Text.of(pa.array(words, pa.large_string()))
    assert len(found) == len(wanted) == len(words)
    assert found.to_arrow().equals(wanted.to_arrow())
    assert [found[i] for i in range(len(words))] == words


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.float32, np.float64, np.bool_])
@pytest.mark.parametrize("count", [0, 1, 9, 64])
def test_numbers_are_the_arrays_that_arrow_makes_of_them(kind: Any, count: int) -> None:
    values = (np.random.default_rng(count).normal(size=2 * count) * 3).astype(kind)
    for part in (values, values[::2]):
        found = as_array(part)
        found.validate(full=True)
        assert found.equals(pa.array(part))


@settings(deadline=None)
@given(st.lists(st.none() | st.lists(st.integers(0, 9), max_size=4), max_size=8))
def test_lists_begin_where_those_before_them_end(rows: list[list[int] | None]) -> None:
    for kind in (pa.list_(pa.int64()), pa.large_list(pa.int64())):
        wanted = np.cumsum([0, *(len(row or ()) for row in rows)])
        assert list_offsets(pa.array(rows, kind)).tolist() == wanted.tolist()
