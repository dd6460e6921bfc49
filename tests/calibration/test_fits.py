"""Maps from scores to rates, against brute force and scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import roc_auc_score

from recgrad.calibration.folds import calibrated_elsewhere, enough_rows
from recgrad.calibration.isotonic import Isotonic, fit_isotonic, pool_adjacent_violators
from recgrad.calibration.measures import expected_calibration_error, log_loss
from recgrad.calibration.platt import Platt, fit_platt, logits_of, sigmoid
from recgrad.calibration.stored import Calibration, read_calibration
from recgrad.errors import DataError, RecgradError
from recgrad.metrics import METRICS

PLACE = {"checkpoint": "model.ckpt-3", "step": 3, "crc32": 7, "averaged": True, "data": "d", "rows": 9}


def overconfident(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores whose true logit is half of theirs, less one."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 2, rows)
    labels = (rng.random(rows) < sigmoid(0.5 * x - 1)).astype(np.float64)
    return sigmoid(x).astype(np.float32).astype(np.float64), labels


def test_platt_finds_the_line_that_made_the_labels() -> None:
    fitted = fit_platt(*overconfident(200_000))
    assert fitted.slope == pytest.approx(0.5, abs=0.01)
    assert fitted.offset == pytest.approx(-1, abs=0.02)


@pytest.mark.parametrize("rows", [5, 40, 3000])
def test_platt_is_the_minimum_that_a_general_optimizer_finds(rows: int) -> None:
    scores, labels = overconfident(rows, seed=1)
    labels[:2] = 0, 1
    order = np.argsort(scores[:2])
    scores[:2] = scores[:2][order]
    positives, negatives = labels.sum(), (1 - labels).sum()
    target = np.where(labels > 0, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    x = logits_of(scores)

    def loss(weights: np.ndarray) -> float:
        z = weights[0] * x + weights[1]
        return float(np.sum(np.logaddexp(0, z) - target * z))

    best = minimize(loss, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    if best.x[0] <= 0:
        with pytest.raises(DataError, match="wrong way round"):
            fit_platt(scores, labels)
        return
    fitted = fit_platt(scores, labels)
    np.testing.assert_allclose([fitted.slope, fitted.offset], best.x, rtol=1e-4, atol=1e-5)
    assert loss(np.array([fitted.slope, fitted.offset])) <= best.fun + 1e-9


def test_platt_keeps_the_order_of_all_scores_that_float32_has() -> None:
    scores = np.array([0, 1e-38, 1e-30, 1e-7, 0.2, 0.5, 0.9, 1 - 2**-24, 1], np.float32)
    mapped = Platt(1.5, -0.3).apply(scores)
    assert np.isfinite(mapped).all()
    assert (np.diff(mapped) >= 0).all()
    assert 0 <= mapped[0] <= mapped[-1] <= 1


def test_scores_that_rank_the_wrong_way_round_are_refused() -> None:
    scores, labels = overconfident(2000)
    with pytest.raises(DataError, match="wrong way round"):
        fit_platt(scores, 1 - labels)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=9))
def test_pooled_steps_are_those_of_brute_force(rows: list[tuple[int, int]]) -> None:
    """The best rising fit at i is max over j ≤ i of min over k ≥ i of the mean of j … k."""
    means = np.array([mean / 4 for mean, _ in rows])
    counts = np.array([float(count) for _, count in rows])

    def mean(j: int, k: int) -> float:
        return float(means[j : k + 1] @ counts[j : k + 1] / counts[j : k + 1].sum())

    n = len(rows)
    expected = [max(min(mean(j, k) for k in range(i, n)) for j in range(i + 1)) for i in range(n)]
    values, firsts = pool_adjacent_violators(means, counts)
    np.testing.assert_allclose(np.repeat(values, np.diff(np.append(firsts, n))), expected, atol=1e-12)


def test_isotonic_gives_what_scikit_learn_gives_between_and_beyond_its_rows() -> None:
    scores, labels = overconfident(3000, seed=4)
    scores = np.round(scores, 3)  # ties
    fitted = fit_isotonic(scores, labels)
    least = 1 / (len(labels) + 2)
    other = IsotonicRegression(out_of_bounds="clip", y_min=least, y_max=1 - least).fit(scores, labels)
    asked = np.linspace(-0.1, 1.1, 4001)
    np.testing.assert_allclose(fitted.apply(asked.astype(np.float32)), other.predict(asked), atol=2e-3)
    np.testing.assert_allclose(fitted.apply(scores.astype(np.float32)), other.predict(scores), atol=1e-5)


def test_isotonic_changes_the_ranks_by_ties_alone() -> None:
    scores, labels = overconfident(2000, seed=5)
    mapped = fit_isotonic(scores, labels).apply(scores.astype(np.float32))
    order = np.argsort(scores)
    assert (np.diff(mapped[order]) >= 0).all()
    assert 0 < mapped.min() <= mapped.max() < 1
    untied = Platt(1.1, 0).apply(scores.astype(np.float32))
    assert roc_auc_score(labels, untied) == pytest.approx(roc_auc_score(labels, scores), abs=1e-7)


def test_measures_are_those_of_the_metrics_and_of_scikit_learn() -> None:
    import torch

    scores, labels = overconfident(500)
    metric = METRICS["calibration"](num_bins=20)
    metric.update(torch.tensor(scores), torch.tensor(labels))
    assert expected_calibration_error(scores, labels) == pytest.approx(
        float(metric.compute()["ece"]), abs=1e-9
    )
    assert log_loss(scores, labels) == pytest.approx(sklearn_log_loss(labels, scores), abs=1e-9)
    assert np.isfinite(log_loss(np.array([0.0, 1.0]), np.array([1.0, 0.0])))


def test_rows_are_calibrated_by_maps_of_other_rows() -> None:
    scores, labels = overconfident(100)
    seen: list[int] = []

    def fit(x: np.ndarray, y: np.ndarray) -> Platt:
        assert 0 < y.sum() < len(y)
        seen.append(len(x))
        return fit_platt(x, y)

    found = calibrated_elsewhere(fit, scores, labels)
    assert seen == [80] * 5
    assert np.abs(found - fit_platt(scores, labels).apply(scores.astype(np.float32))).max() < 0.2
    assert enough_rows(labels)
    assert not enough_rows(labels[:12])


def test_a_stored_calibration_reads_as_it_was_written(tmp_path: Path) -> None:
    maps = {"probs_a": Platt(0.1 + 0.2, -1e-9), "probs_b": Isotonic((0.1, 0.5), (0.0, 0.25))}
    written = Calibration(maps=maps, **PLACE)
    (tmp_path / "c.json").write_bytes(written.to_bytes())
    assert read_calibration(tmp_path / "c.json") == written
    scores = {"probs_a": np.array([0.2], np.float32), "y": np.array([7.0], np.float32)}
    assert written.apply(scores)["y"] == 7
    two = written.apply({"probs_b": np.array([[0.7, 0.3]], np.float32)})["probs_b"]
    np.testing.assert_allclose(two, [[0.875, 0.125]])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"format": 1', b'"format": 2'),
        (b'"slope": 2.0', b'"slope": -2.0'),
        (b'"platt"', b'"other"'),
        (b'"step": 3', b'"step": "3"'),
        (b"{", b"["),
        (b'"maps"', b'"maps2"'),
        (b"0.25", b"-0.25"),
    ],
)
def test_a_damaged_calibration_is_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    content = Calibration(
        maps={"a": Platt(2.0, 0.0), "b": Isotonic((0.1, 0.5), (0.0, 0.25))}, **PLACE
    ).to_bytes()
    assert old in content
    (tmp_path / "c.json").write_bytes(content.replace(old, new, 1))
    with pytest.raises(RecgradError, match="calibrate again"):
        read_calibration(tmp_path / "c.json")
