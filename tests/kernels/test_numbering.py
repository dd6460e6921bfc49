"""Codes of distinct ids against NumPy, with and without rows that have none."""

from __future__ import annotations

import numpy as np
import pytest

from recgrad.kernels.numbering import MISSING, NO_CODE, NOT_FEW, number_ids

ROWS = 200


@pytest.mark.parametrize("leave", [False, True])
@pytest.mark.parametrize("size", [1, 7, 60, 10**12])
def test_ids_are_numbered_as_they_appear(size: int, leave: bool) -> None:
    rng = np.random.default_rng(size % 101)
    values = rng.integers(0, size, ROWS)
    lengths = rng.integers(0, 2, ROWS, np.int32)
    given = np.where(lengths == 1, values, MISSING)
    packed = values[lengths == 1]
    found = number_ids(
        ROWS,
        np.array([packed.ctypes.data]),
        np.array([lengths.ctypes.data]),
        np.array([ROWS]),
        ordered=False,
        leave_missing=leave,
    )
    keys, codes = found.keys[0, : found.counts[0]], found.codes[0]
    there = lengths == 1 if leave else np.ones(ROWS, bool)
    np.testing.assert_array_equal(keys[codes[there]], given[there])
    assert (codes[~there] == NO_CODE).all()
    first = [int(np.flatnonzero(codes == code)[0]) for code in range(len(keys))]
    assert first == sorted(first)
    np.testing.assert_array_equal(found.firsts[0, : len(keys)], first)
    assert len(keys) == len(np.unique(given[there]))


def test_fields_with_too_many_ids_or_with_several_in_a_row_are_given_up() -> None:
    ids = np.arange(ROWS)
    two = np.full(ROWS, 1, np.int32)
    two[3] = 2
    addresses = np.full(3, ids.ctypes.data)
    lengths = np.array([0, 0, two.ctypes.data])
    limits = np.array([ROWS - 1, ROWS, ROWS])
    found = number_ids(ROWS, addresses, lengths, limits, ordered=False, leave_missing=True)
    assert found.counts.tolist() == [NOT_FEW, ROWS, NOT_FEW]
