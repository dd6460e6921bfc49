"""Calibration and AUC by group size against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from recgrad.report.diagnostics import auc_by_group_size, calibration_curve


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 5)), min_size=1, max_size=60),
)
@settings(max_examples=60, deadline=None)
def test_auc_by_group_size_is_the_mean_of_each_groups_auc(rows: list[tuple[int, bool, int]]) -> None:
    scores = np.array([float(score) for score, _, _ in rows])
    labels = np.array([float(label) for _, label, _ in rows])
    keys = np.array([key for _, _, key in rows])
    expected: dict[int, list[float]] = {}
    for key in set(keys.tolist()):
        mine = keys == key
        if len(set(labels[mine])) == 2:
            level = int(np.log2(mine.sum()))
            expected.setdefault(level, []).append(roc_auc_score(labels[mine], scores[mine]))
    sizes = auc_by_group_size(scores, labels, keys)
    assert sizes.labels == [f"{2**k}–{2 ** (k + 1) - 1}" for k in sorted(expected)]
    assert sizes.groups.tolist() == [len(expected[k]) for k in sorted(expected)]
    np.testing.assert_allclose(sizes.auc, [np.mean(expected[k]) for k in sorted(expected)], rtol=1e-12)


def test_calibration_bins_hold_equally_many_rows_in_order() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random(1000)
    labels = (rng.random(1000) < scores).astype(float)
    curve = calibration_curve(scores, labels, num_bins=10)
    assert curve.rows.tolist() == [100] * 10
    assert np.all(np.diff(curve.predicted) > 0)
    lowest = scores <= np.sort(scores)[99]
    assert curve.observed[0] == pytest.approx(labels[lowest].mean())
    assert (curve.predicted @ curve.rows) == pytest.approx(scores.sum())


def test_calibration_of_fewer_rows_than_bins() -> None:
    curve = calibration_curve(np.array([0.2, 0.8]), np.array([0.0, 1.0]))
    assert curve.predicted.tolist() == [0.2, 0.8]
    assert curve.observed.tolist() == [0.0, 1.0]
