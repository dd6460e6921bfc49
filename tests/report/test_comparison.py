"""Comparison of two models: DeLong and bootstrap against slow references and known truths."""

import itertools

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import recgrad
from recgrad import metrics
from recgrad.errors import RecgradError
from recgrad.metrics import GroupedAUC
from recgrad.report import comparison_plot
from recgrad.report.comparison import compare


def models(rows: int, seed: int, noise_a: float, noise_b: float, users: int = 0):
    rng = np.random.default_rng(seed)
    user = rng.integers(0, max(users, 1), rows)
    truth = -1.5 + rng.normal(size=rows) + (rng.normal(size=users)[user] if users else 0)
    labels = (rng.random(rows) < 1 / (1 + np.exp(-truth))).astype(int)
    a, b = (1 / (1 + np.exp(-(truth + noise * rng.normal(size=rows)))) for noise in (noise_a, noise_b))
    return labels, a, b, user


def all_pairs(labels, scores):
    pos, neg = scores[labels == 1], scores[labels == 0]
    return ((pos[:, None] > neg) + 0.5 * (pos[:, None] == neg)).mean()


def delong_by_all_pairs(labels, a, b):
    """AUCs and the variance of their difference as in the paper, from the matrix of pairs."""
    components = []
    for scores in (a, b):
        pos, neg = scores[labels == 1], scores[labels == 0]
        wins = (pos[:, None] > neg) + 0.5 * (pos[:, None] == neg)
        components.append((wins.mean(), wins.mean(1), wins.mean(0)))
    (auc_a, pos_a, neg_a), (auc_b, pos_b, neg_b) = components
    pos, neg = np.cov(pos_a, pos_b), np.cov(neg_a, neg_b)
    spread = pos / len(pos_a) + neg / len(neg_a)
    return auc_a, auc_b, spread[0, 0] + spread[1, 1] - 2 * spread[0, 1]


@pytest.mark.parametrize("digits", [1, 9])
def test_auc_interval_is_delongs(digits):
    labels, a, b, _ = models(600, 0, 1.0, 0.6)
    a, b = a.round(digits), b.round(digits)
    found = compare(labels, a, b)["auc"]
    auc_a, auc_b, variance = delong_by_all_pairs(labels, a, b)
    assert (found.a, found.b) == pytest.approx((auc_a, auc_b), rel=1e-12)
    assert found.difference == pytest.approx(auc_b - auc_a, rel=1e-9)
    reach = 1.959963984540054 * np.sqrt(variance)
    assert (found.low, found.high) == pytest.approx((auc_b - auc_a - reach, auc_b - auc_a + reach), rel=1e-9)


@pytest.mark.parametrize("rows", [4000, 350_000])  # the second is drawn in blocks
def test_log_loss_interval_is_near_the_normal_one(rows):
    labels, a, b, _ = models(rows, 1, 1.0, 0.7)
    found = compare(labels, a, b, num_resamples=4000)["log_loss"]
    losses = [-np.where(labels == 1, np.log(p), np.log(1 - p)) for p in (a, b)]
    change = losses[1] - losses[0]
    error = change.std(ddof=1) / np.sqrt(len(change))
    assert found.difference == pytest.approx(change.mean(), rel=1e-9)
    assert (found.low, found.high) == pytest.approx(
        (change.mean() - 1.96 * error, change.mean() + 1.96 * error), abs=0.15 * error
    )


def test_grouped_auc_is_the_metric_and_its_interval_that_of_group_means():
    labels, a, b, user = models(6000, 2, 1.0, 0.7, users=400)
    found = compare(labels, a, b, user, num_resamples=4000)["grouped_auc"]
    for value, scores in ((found.a, a), (found.b, b)):
        expected = GroupedAUC()(torch.tensor(scores), torch.tensor(labels), torch.tensor(user)).item()
        assert value == pytest.approx(expected, rel=1e-12)
    changes = [
        all_pairs(labels[rows], b[rows]) - all_pairs(labels[rows], a[rows])
        for rows in (user == key for key in np.unique(user))
        if 0 < labels[rows].mean() < 1
    ]
    error = np.std(changes, ddof=1) / np.sqrt(len(changes))
    assert found.difference == pytest.approx(np.mean(changes), rel=1e-9)
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_copies_of_rows_in_a_group_are_no_news():
    """Each row four times over, as one group: the interval must not shrink to half."""
    labels, a, b, _ = models(1500, 3, 1.0, 0.8)
    once = compare(labels, a, b)
    copies = [np.repeat(x, 4) for x in (labels, a, b)]
    fooled, grouped = compare(*copies), compare(*copies, np.repeat(np.arange(1500), 4))
    for metric in ("auc", "log_loss"):
        width, naive, honest = (c[metric].high - c[metric].low for c in (once, fooled, grouped))
        assert naive == pytest.approx(width / 2, rel=0.1)
        assert honest == pytest.approx(width, rel=0.1)
    # A group of copies has one class, so there is no grouped AUC: said, not made up.
    assert [d.metric for d in grouped.differences] == ["auc", "log_loss"]
    assert "note: no group has rows of both classes" in str(grouped)


def test_a_better_model_is_named_and_a_swap_swaps():
    labels, a, b, user = models(20_000, 4, 1.5, 0.3, users=500)
    forth, back = compare(labels, a, b, user), compare(labels, b, a, user)
    assert forth.verdict == "B is better in auc, grouped_auc and log_loss"
    assert back.verdict == "A is better in auc, grouped_auc and log_loss"
    for d, e in zip(forth.differences, back.differences):
        assert d.difference == pytest.approx(-e.difference)
        assert (d.low, d.high) == pytest.approx((-e.high, -e.low), rel=1e-9)


def test_the_same_predictions_show_no_difference():
    labels, a, _, user = models(2000, 5, 1.0, 1.0, users=100)
    found = compare(labels, a, a, user)
    assert found.verdict == "no difference shown at 95% confidence"
    assert all(d.difference == d.low == d.high == 0 and d.p_value == 1 for d in found.differences)


@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say():
    """Two models that are equally good: 300 comparisons at 90% must err in about 30."""
    wrong = {"auc": 0, "grouped_auc": 0, "log_loss": 0}
    for seed in range(300):
        labels, a, b, user = models(1500, 100 + seed, 0.8, 0.8, users=150)
        for d in compare(labels, a, b, user, confidence=0.9, num_resamples=400).differences:
            wrong[d.metric] += d.winner is not None
    # Binomial(300, 0.1) lies in 12 … 50 but for one time in 20,000.
    assert all(12 <= count <= 50 for count in wrong.values()), wrong


def test_seeds_and_groups_by_name():
    labels, a, b, user = models(3000, 6, 1.0, 0.9, users=200)
    first = compare(labels, a, b, user, seed=1).to_dict()
    assert compare(labels, a, b, [f"u{u}" for u in user], seed=1)["grouped_auc"].difference == pytest.approx(
        first["differences"][1]["difference"], rel=1e-9
    )
    assert compare(labels, a, b, user, seed=1).to_dict() == first
    assert compare(labels, a, b, user, seed=2).to_dict() != first


@pytest.mark.parametrize("low", [0.2999, 0.28, 0.2, 0.05, 1e-3, 1e-7])
def test_marks_of_the_calibration_do_not_overlap(low):
    rng = np.random.default_rng(3)
    rates = np.exp(rng.uniform(np.log(low), np.log(0.3), 5_000))
    labels = (rng.random(5_000) < rates).astype(float)
    comparison = compare(labels, rates, np.clip(rates * 1.1, 0, 0.999), num_resamples=100)
    figure = Figure(figsize=(11, 3.9), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subfigures(1, 2, width_ratios=(1.75, 1))[1].subplots()
    comparison_plot._calibration(axes, comparison.reliability)
    figure.canvas.draw()
    for axis, side in ((axes.xaxis, "x"), (axes.yaxis, "y")):
        labels = [label for label in axis.get_ticklabels(which="both") if label.get_text()]
        spans = sorted(getattr(label.get_window_extent(), f"interval{side}").tolist() for label in labels)
        assert len(spans) >= 2
        assert len({label.get_text() for label in labels}) == len(labels)
        assert all(left[1] < right[0] for left, right in itertools.pairwise(spans)), spans


def test_plot_is_a_picture(tmp_path):
    labels, a, b, user = models(2000, 7, 1.0, 0.5, users=100)
    path = tmp_path / "plot.png"
    compare(labels, a, b, user).plot(path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("labels", "a", "message"),
    [
        ([0, 1, 2, 1], [0.1] * 4, "labels must be 0 or 1, got 2"),
        ([0, 0, 0, 1], [0.1] * 4, "at least 2 rows of each class"),
        ([0, 0, 1, 1], [0.1] * 3, "4 labels but 3 predictions of A"),
        ([0, 0, 1, 1], [0.1, 0.2, float("nan"), 0.3], "compare: A: 1 of 4 predictions are nan"),
        ([0, 0, 1, 1], [0.1, 0.2, 3.0, 0.3], r"predictions of A must be probabilities in \[0, 1\]"),
    ],
)
def test_input_that_cannot_be_compared_is_refused(labels, a, message):
    with pytest.raises(RecgradError, match=message):
        compare(labels, a, [0.1, 0.2, 0.3, 0.4])


def test_weighting_without_groups_is_refused():
    with pytest.raises(ValueError, match="weighting is of groups"):
        compare([0, 0, 1, 1], [0.1] * 4, [0.2] * 4, weighting="POSITIVES")


def test_the_former_home_of_the_names_still_has_them():
    assert metrics.compare is recgrad.compare is compare
    assert metrics.Comparison is recgrad.Comparison
