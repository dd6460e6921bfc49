"""Differences of checkpoints, against brute force in float64."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from recgrad.training.checkpoint import Snapshot, TableRows, diff_snapshots
from recgrad.training.checkpoint import diff as diff_module
from recgrad.training.checkpoint.diff import compare_arrays

values = hnp.arrays(np.float32, 7, elements=st.floats(width=32))


def brute(a, b):
    """(largest absolute, largest relative difference), element by element."""
    absolute = relative = 0.0
    for x, y in zip(a.tolist(), b.tolist()):
        if x == y or (math.isnan(x) and math.isnan(y)):
            continue
        distance = abs(x - y)
        absolute = max(absolute, math.inf if math.isnan(distance) else distance)
        share = distance / max(abs(x), abs(y)) if math.isfinite(distance) else math.inf
        relative = max(relative, share)
    return absolute, relative


@settings(max_examples=100, deadline=None)
@given(a=values, b=values, same=st.integers(0, 127))
def test_the_largest_differences_are_those_of_brute_force(a, b, same):
    chosen = np.array([bool(same >> i & 1) for i in range(7)])
    b = np.where(chosen, a, b)
    before = diff_module.CHUNK
    diff_module.CHUNK = 3
    try:
        equal, absolute, relative = compare_arrays(a, b)
    finally:
        diff_module.CHUNK = before
    assert equal == (a.tobytes() == b.tobytes())
    expected = brute(a.astype(np.float64), b.astype(np.float64))
    assert (absolute, relative) == expected


def diff(first, second):
    return {item.name: item for item in diff_snapshots(Snapshot(0, first), Snapshot(0, second))}


def test_negative_zero_is_another_value_at_no_distance():
    item = diff({"a": torch.zeros(2)}, {"a": -torch.zeros(2)})["a"]
    assert (item.equal, item.max_abs) == (False, 0.0)
    assert not diff({"a": 0.0}, {"a": -0.0})["a"].equal


def test_equal_nans_are_equal():
    assert diff({"a": torch.tensor(math.nan), "b": math.nan}, {"a": torch.tensor(math.nan), "b": math.nan})[
        "a"
    ].equal


def test_types_and_shapes_are_told():
    found = diff(
        {
            "shape": torch.ones(2),
            "dtype": torch.ones(2),
            "kind": 1,
            "bf16": torch.ones(2, dtype=torch.bfloat16),
        },
        {
            "shape": torch.ones(3),
            "dtype": torch.ones(2).double(),
            "kind": 1.0,
            "bf16": torch.ones(2).bfloat16() * 2,
        },
    )
    assert found["shape"].note == "shape [2] | [3]"
    assert found["dtype"].note == "torch.float32 | torch.float64"
    assert found["kind"].note == "int | float"
    assert found["bf16"].max_abs == 1.0
    assert not any(item.equal for item in found.values())


def test_lists_of_numbers_are_one_value_and_lists_of_tensors_are_many():
    found = diff({"a": [1, 2], "b": [torch.ones(1), 2]}, {"a": [1, 3], "b": [torch.ones(1), 2]})
    assert {name: item.equal for name, item in found.items()} == {"a": False, "b/0": True, "b/1": True}


def rows(ids, shift=0.0, num_rows=100, dim=2, states=("m",)):
    ids = np.array(ids, dtype=np.int64)
    weights = np.stack([ids] * dim, axis=1).astype(np.float32) + np.float32(shift)
    return TableRows(
        "t",
        num_rows,
        dim,
        ids,
        weights,
        {"t": np.array(len(ids)), **{name: weights[:, :1].copy() for name in states}},
    )


def table_diff(a, b):
    found = diff_snapshots(Snapshot(0, {}, [a] if a else []), Snapshot(0, {}, [b] if b else []))
    return {item.name: item for item in found}


def test_rows_are_matched_by_id():
    found = table_diff(rows([1, 4, 9]), rows([0, 4, 9, 50, 51], shift=0.25))
    weights = found["table t"]
    assert (weights.only_first, weights.only_second, weights.max_abs) == (1, 3, 0.25)
    assert weights.max_rel == 0.25 / 4.25
    assert found["table t m"].max_abs == 0.25
    assert found["table t t"].max_abs == 2


def test_equal_tables():
    assert all(item.equal for item in table_diff(rows([1, 4]), rows([1, 4])).values())


def test_tables_that_cannot_be_compared():
    assert "only in the second (2 rows)" in table_diff(None, rows([1, 4]))["table t"].note
    assert table_diff(rows([1], dim=2), rows([1], dim=3))["table t"].note == "[100, 2] | [100, 3]"
    found = table_diff(rows([1]), rows([1], num_rows=200, states=("v",)))
    assert found["table t"].note == "[100, 2] | [200, 2]"
    assert not found["table t"].equal
    assert found["table t m"].note == "only in the first"
    assert found["table t v"].note == "only in the second"
