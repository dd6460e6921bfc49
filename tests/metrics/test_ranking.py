"""Ranking metrics against the mean over every order that the scores allow."""

import itertools
import math

import numpy as np
import pytest
import torch
import torchmetrics.functional.retrieval as retrieval
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from recgrad.errors import RecgradError
from recgrad.metrics import MRR, HitRateAtK, NDCGAtK, RecallAtK, UndefinedMetricWarning

CLASSES = {"recall": RecallAtK, "ndcg": NDCGAtK, "hit": HitRateAtK, "mrr": MRR}


def of_order(name, gains, k):
    """The metric of one definite order of a query's items."""
    wanted = sum(gain > 0 for gain in gains)
    top = gains[:k]
    if name == "recall":
        return sum(gain > 0 for gain in top) / wanted
    if name == "hit":
        return float(any(gain > 0 for gain in top))
    if name == "mrr":
        return next((1 / rank for rank, gain in enumerate(top, 1) if gain > 0), 0.0)

    def dcg(order):
        return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(order, 1))

    return dcg(top) / dcg(sorted(gains, reverse=True)[:k])


def expected(name, scores, gains, k):
    """The mean over all orders that put larger scores first."""
    values = [
        of_order(name, [gains[i] for i in order], k)
        for order in itertools.permutations(range(len(scores)))
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))
    ]
    return sum(values) / len(values)


queries = st.lists(
    st.lists(
        st.tuples(st.sampled_from([0.1, 0.2, 0.3]), st.sampled_from([0, 0, 1, 2])), min_size=1, max_size=6
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("name", CLASSES)
@settings(max_examples=40, deadline=None)
@given(queries, st.integers(1, 7))
@pytest.mark.filterwarnings("ignore::recgrad.metrics.base.UndefinedMetricWarning")
def test_flat_rows_with_keys(name, groups, k):
    values = [
        expected(name, [s for s, _ in group], [g for _, g in group], k)
        for group in groups
        if any(g for _, g in group)
    ]
    rows = [(score, gain, key) for key, group in enumerate(groups) for score, gain in group]
    np.random.default_rng(k).shuffle(rows)
    scores, gains, keys = (torch.tensor([row[i] for row in rows]) for i in range(3))
    found = CLASSES[name](top_k=k, grouping_key="user")(scores, gains, keys.long())
    assert found.item() == pytest.approx(np.mean(values) if values else float("nan"), rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("name", CLASSES)
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=5, max_size=5), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(0, 10**6),
)
@pytest.mark.filterwarnings("ignore::recgrad.metrics.base.UndefinedMetricWarning")
def test_scores_of_candidates(name, scores, k, seed):
    rng = np.random.default_rng(seed)
    wanted = rng.integers(0, 5, len(scores))
    one = [expected(name, row, [int(i == w) for i in range(5)], k) for row, w in zip(scores, wanted)]
    assert CLASSES[name](top_k=k)(torch.tensor(scores), torch.tensor(wanted)).item() == pytest.approx(
        np.mean(one)
    )
    mask = rng.integers(0, 2, (len(scores), 5))
    many = [expected(name, row, gains.tolist(), k) for row, gains in zip(scores, mask) if gains.any()]
    found = CLASSES[name](top_k=k)(torch.tensor(scores), torch.tensor(mask)).item()
    assert found == pytest.approx(np.mean(many) if many else float("nan"), nan_ok=True)


@pytest.mark.parametrize("name", CLASSES)
def test_a_model_that_scores_everything_alike_gets_what_chance_gets(name):
    """The wanted candidate is the first column: a plain sort would put it on top."""
    found = CLASSES[name](top_k=5)(torch.zeros(8, 100), torch.zeros(8, dtype=torch.int64)).item()
    by_chance = {
        "recall": 0.05,
        "hit": 0.05,
        "ndcg": sum(1 / math.log2(r + 1) for r in range(1, 6)) / 100,
        "mrr": sum(1 / r for r in range(1, 6)) / 100,
    }
    assert found == pytest.approx(by_chance[name])


def test_other_libraries_agree_where_they_define_the_same():
    torch.manual_seed(0)
    scores, gains = torch.randn(30, 40), torch.randint(0, 4, (30, 40))
    clicked = (gains == 3).long()
    assert NDCGAtK(top_k=7)(scores, gains).item() == pytest.approx(ndcg_score(gains, scores, k=7), rel=1e-9)
    pairs = {
        RecallAtK: retrieval.retrieval_recall,
        HitRateAtK: retrieval.retrieval_hit_rate,
        MRR: retrieval.retrieval_reciprocal_rank,
    }
    for ours, theirs in pairs.items():
        expected_value = np.mean([theirs(s, c, top_k=7).item() for s, c in zip(scores, clicked)])
        assert ours(top_k=7)(scores, clicked).item() == pytest.approx(expected_value, rel=1e-6)


def test_mrr_counts_every_place_by_default():
    assert MRR()(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([2])).item() == pytest.approx(1 / 3)
    assert MRR(top_k=2)(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([2])) == 0


def test_queries_that_want_nothing_are_left_out_and_alone_undefined():
    metric = RecallAtK(top_k=1)
    metric.update(torch.tensor([[0.1, 0.9], [0.4, 0.2]]), torch.tensor([[0, 0], [1, 0]]))
    assert metric.compute() == 1
    with pytest.warns(UndefinedMetricWarning, match="no query"):
        assert torch.isnan(NDCGAtK()(torch.tensor([[0.1, 0.9]]), torch.tensor([[0, 0]])))


def test_keys_go_with_a_grouping_key():
    with pytest.raises(ValueError, match="keys go with grouping_key"):
        RecallAtK()(torch.rand(3), torch.ones(3), torch.zeros(3).long())
    with pytest.raises(ValueError, match="keys go with grouping_key"):
        RecallAtK(grouping_key="u")(torch.rand(3), torch.ones(3))


def test_targets_that_make_no_sense_are_refused():
    with pytest.raises(RecgradError, match=r"label 7 at row 1 .* 5 columns"):
        RecallAtK()(torch.rand(2, 5), torch.tensor([0, 7]))
    with pytest.raises(RecgradError, match="relevances must be at least 0, got -1"):
        NDCGAtK()(torch.rand(1, 2), torch.tensor([[0, -1]]))


def test_names_in_logs_carry_k():
    metric = RecallAtK(top_k=50)
    metric.config_name = "recall_at_k"
    assert metric.display_name == "recall@50"
