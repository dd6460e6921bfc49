"""Directions and last updates of rows, as they lie behind the weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from recgrad.embedding.local.headings import LANES, line_width, pack, unpack


@given(st.data(), st.sampled_from([1, 3, 16, 28, 48]))
def test_what_was_packed_comes_out(data: st.DataObject, dim: int) -> None:
    floats = st.floats(-1e3, 1e3, width=32)
    headings = data.draw(arrays(np.float32, (3, dim), elements=floats))
    steps = data.draw(arrays(np.int32, 3, elements=st.integers(0, 2**31 - 1)))
    lines = pack(headings, steps)
    assert lines.shape == (3, line_width(dim))
    found, numbers = unpack(lines, dim)
    np.testing.assert_array_equal(numbers, steps)
    np.testing.assert_allclose(found, headings, rtol=3 * 2.0**-23, atol=1e-43)
    # What a lookup reads is what a checkpoint keeps.
    again, _ = unpack(pack(found, steps), dim)
    np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize("dim", [16, 64])
def test_whole_lines_stay_whole(dim: int) -> None:
    assert line_width(dim) == dim
    assert LANES * 2 == 32  # bits of the number
