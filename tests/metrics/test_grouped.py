"""Metrics within groups against loops over the groups."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from recgrad.metrics import GroupedAUC, GroupedXAUC

rows_of_groups = st.lists(
    st.tuples(st.sampled_from([0.0, 0.2, 0.5, 0.7]), st.integers(0, 1), st.integers(-2, 3)), max_size=40
)


def by_group(scores, labels, keys):
    groups = {}
    for score, label, key in zip(scores, labels, keys):
        groups.setdefault(key, []).append((score, label))
    return groups.values()


def pair_share(rows):
    """Share of label-ordered pairs that the score orders alike, or None."""
    wins = [
        1.0 if (p - q) * (y - z) > 0 else 0.5 if p == q else 0.0
        for i, (p, y) in enumerate(rows)
        for q, z in rows[:i]
        if y != z
    ]
    return sum(wins) / len(wins) if wins else None


@settings(max_examples=80, deadline=None)
@given(rows_of_groups, st.sampled_from(["NONE", "IMPRESSIONS", "POSITIVES"]))
@pytest.mark.filterwarnings("ignore::recgrad.metrics.base.UndefinedMetricWarning")
def test_grouped_auc_is_the_mean_over_groups_with_both_classes(rows, weighting):
    scores, labels, keys = ([row[i] for row in rows] for i in range(3))
    values, weights = [], []
    for group in by_group(scores, labels, keys):
        share = pair_share(group)
        if share is not None:
            values.append(share)
            positives = sum(label for _, label in group)
            weights.append({"NONE": 1, "IMPRESSIONS": len(group), "POSITIVES": positives}[weighting])
    expected = sum(v * w for v, w in zip(values, weights)) / sum(weights) if values else float("nan")
    metric = GroupedAUC(weighting=weighting)
    found = metric(torch.tensor(scores), torch.tensor(labels), torch.tensor(keys, dtype=torch.int64))
    assert found.item() == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_grouped_auc_is_that_of_scikit_learn_per_group():
    rng = np.random.default_rng(0)
    keys, labels = rng.integers(0, 300, 6000), rng.integers(0, 2, 6000)
    scores = np.round(rng.random(6000), 2)
    values = [
        roc_auc_score(labels[keys == key], scores[keys == key])
        for key in np.unique(keys)
        if 0 < labels[keys == key].mean() < 1
    ]
    found = GroupedAUC()(torch.tensor(scores), torch.tensor(labels), torch.tensor(keys))
    assert found.item() == pytest.approx(np.mean(values), rel=1e-12)


def test_strings_and_numbers_make_the_same_groups():
    torch.manual_seed(1)
    scores, labels, keys = torch.rand(500), torch.randint(0, 2, (500,)), torch.randint(0, 60, (500,))
    names = [f"用户-{key}" * (1 + key % 3) for key in keys.tolist()]
    numbers = GroupedAUC()(scores, labels, keys)
    for spelled in (names, np.array(names), np.array(names, dtype=object)):
        metric = GroupedAUC()
        # Batches hash alike: what is one group in two updates stays one group.
        metric.update(scores[:200], labels[:200], spelled[:200])
        metric.update(scores[200:], labels[200:], spelled[200:])
        assert metric.compute().item() == pytest.approx(numbers.item(), rel=1e-14)


def test_keys_that_are_floats_or_too_few_are_refused():
    with pytest.raises(ValueError, match="integers or strings"):
        GroupedAUC()(torch.rand(2), torch.tensor([0, 1]), torch.rand(2))
    with pytest.raises(ValueError, match="one key for each of 2 rows, got 1"):
        GroupedAUC()(torch.rand(2), torch.tensor([0, 1]), torch.tensor([1]))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.2, 0.5, 0.7]), st.sampled_from([0.0, 1.5, 3.0]), st.integers(0, 3)),
        max_size=40,
    )
)
@pytest.mark.filterwarnings("ignore::recgrad.metrics.base.UndefinedMetricWarning")
def test_exact_grouped_xauc_weighs_groups_by_their_rows(rows):
    scores, labels, keys = ([row[i] for row in rows] for i in range(3))
    pairs = [(pair_share(group), len(group)) for group in by_group(scores, labels, keys)]
    defined = [(share, size) for share, size in pairs if share is not None]
    total = sum(size for _, size in defined)
    expected = sum(share * size for share, size in defined) / total if total else float("nan")
    found = GroupedXAUC(exact=True)(torch.tensor(scores), torch.tensor(labels), torch.tensor(keys).long())
    assert found.item() == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_sampled_grouped_xauc_is_exact_for_small_groups_and_near_for_large():
    rng = np.random.default_rng(2)
    keys = torch.tensor(rng.integers(0, 200, 4000))
    labels = torch.tensor(rng.exponential(size=4000))
    scores = labels + torch.tensor(rng.normal(size=4000))
    exact = GroupedXAUC(exact=True)(scores, labels, keys).item()
    assert GroupedXAUC(max_pairs_per_group=10**6)(scores, labels, keys).item() == exact
    sampled = GroupedXAUC(max_pairs_per_group=100)(scores, labels, keys).item()
    # 200 groups of 100 draws: a standard error of at most 0.5 / √20000.
    assert abs(sampled - exact) < 4 * 0.5 / np.sqrt(200 * 100)
    assert sampled != exact


def test_a_group_whose_sample_hits_no_pair_that_counts_is_counted_whole():
    labels = torch.zeros(1000)
    labels[0] = 1
    scores = torch.arange(1000.0).flip(0)
    assert GroupedXAUC(max_pairs_per_group=1)(scores, labels, torch.zeros(1000).long()) == 1


def test_a_million_rows_in_a_hundred_thousand_groups_take_no_python_loop():
    rng = np.random.default_rng(0)
    scores, labels = torch.tensor(rng.random(1_000_000)), torch.tensor(rng.random(1_000_000) < 0.1)
    keys = torch.tensor(rng.integers(0, 100_000, 1_000_000))
    metric = GroupedAUC()
    metric(scores[:10], labels[:10], torch.zeros(10).long())  # compiles
    metric.reset()
    metric.update(scores, labels, keys)
    start = time.process_time()
    metric.compute()
    assert time.process_time() - start < 5  # 0.3 s; a loop over groups takes over 30
