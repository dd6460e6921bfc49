"""XAUC: all pairs, sampled pairs, pairs of a batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import somersd

from recgrad.errors import RecgradError
from recgrad.metrics import XAUC
from recgrad.metrics.pairs import concordance, sampled_concordance

numbers = st.sampled_from([-1.5, 0.0, 0.25, 1.0, 2.0, 7.0])


def counted(scores, labels):
    wins = pairs = 0
    for i in range(len(scores)):
        for j in range(i):
            if labels[i] != labels[j]:
                pairs += 1
                same = (scores[i] - scores[j]) * (labels[i] - labels[j])
                wins += 2 if same > 0 else 1 if scores[i] == scores[j] else 0
    return wins, pairs


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(numbers, numbers), max_size=70))
def test_counts_are_those_of_all_pairs(rows):
    scores, labels = np.array([r[0] for r in rows], float), np.array([r[1] for r in rows], float)
    assert concordance(scores, labels) == counted(scores, labels)


def test_long_arrays_count_like_somers_d():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 50, 3000)
    scores = np.round(labels + 20 * rng.normal(size=3000))
    value = XAUC(exact=True)(torch.tensor(scores), torch.tensor(labels)).item()
    assert value == pytest.approx((somersd(labels, scores).statistic + 1) / 2, rel=1e-12)


def test_perfect_predictions_score_1_also_with_tied_labels():
    labels = torch.tensor([1.0, 1.0, 2.0, 2.0, 2.0, 3.0])
    for metric in (XAUC(exact=True), XAUC(), XAUC(in_batch=True), XAUC(max_pairs=4)):
        assert metric(labels * 10, labels) == 1


def test_constant_predictions_score_a_half():
    assert XAUC(exact=True)(torch.ones(50), torch.arange(50)) == 0.5


def test_the_sample_is_near_the_exact_value_and_keeps_to_the_rows():
    rng = np.random.default_rng(1)
    labels = rng.exponential(size=1_000_000)
    scores = labels + rng.normal(size=1_000_000)
    wins, pairs = concordance(scores, labels)
    drawn_wins, drawn = sampled_concordance(scores, labels, 400_000)
    assert drawn == 400_000  # no two labels are equal, so each draw of two rows counts
    assert abs(drawn_wins / 2 / drawn - wins / 2 / pairs) < 4 * 0.5 / np.sqrt(drawn)


@pytest.mark.parametrize("rows", [2, 3, 1000])
def test_draws_are_uniform_over_pairs_of_different_rows(rows):
    """A row with its own label is in 2 of every n draws; were i = j drawn, it would be missed."""
    labels = np.zeros(rows)
    labels[rows // 2] = 1
    draws = 16 * rows - 1
    found = [
        sampled_concordance(np.zeros(rows + extra), np.append(labels, np.zeros(extra)), draws)[1]
        for extra in range(40)
    ]
    expected = sum(
        2 / (rows + extra) * draws for extra in range(40) if draws < (rows + extra) * (rows + extra - 1) // 2
    )
    counted_whole = sum(
        rows + extra - 1 for extra in range(40) if draws >= (rows + extra) * (rows + extra - 1) // 2
    )
    assert abs(sum(found) - counted_whole - expected) < 5 * np.sqrt(expected + 1)


def test_the_sample_does_not_depend_on_the_order_of_rows():
    rng = np.random.default_rng(4)
    labels, scores = rng.integers(0, 30, 2000).astype(float), rng.normal(size=2000).round(1)
    mixed = rng.permutation(2000)
    assert sampled_concordance(scores, labels, 500) == sampled_concordance(scores[mixed], labels[mixed], 500)


def test_in_batch_pools_the_pairs_of_each_batch():
    rng = np.random.default_rng(5)
    scores, labels = torch.tensor(rng.normal(size=60)), torch.tensor(rng.integers(0, 4, 60))
    metric = XAUC(in_batch=True)
    wins = pairs = 0
    for part in (slice(0, 10), slice(10, 11), slice(11, 60), slice(60, 60)):
        metric.update(scores[part], labels[part])
        more = counted(scores[part].tolist(), labels[part].tolist())
        wins, pairs = wins + more[0], pairs + more[1]
    assert metric.compute().item() == pytest.approx(wins / 2 / pairs, rel=1e-14)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_ratio": 0.0}, "sample_ratio"),
        ({"max_pairs": 0}, "max_pairs"),
        ({"exact": True, "in_batch": True}, "exact"),
        ({"in_batch": True, "max_pairs": 5}, "in_batch"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        XAUC(**options)


def test_labels_that_are_not_numbers_are_named():
    with pytest.raises(RecgradError, match="label nan at row 1"):
        XAUC()(torch.zeros(2), torch.tensor([1.0, float("nan")]))
