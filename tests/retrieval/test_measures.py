"""Measures of lists against a plain loop over queries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.retrieval.lists import ItemSets
from recgrad.retrieval.measures import CatalogueMeasures
from recgrad.retrieval.popular import MostPopular


def by_loop(
    lists: list[list[int]], wanted: list[set[int]], missing: list[int], k: int, counts: list[int]
) -> dict[str, float]:
    rows: dict[str, list[float]] = {name: [] for name in ("recall", "precision", "hit_rate", "ndcg", "mrr")}
    hits = total = 0
    listed: list[int] = []
    for own, relevant, absent in zip(lists, wanted, missing):
        size = len(relevant) + absent
        if not size:
            continue
        top = own[:k]
        good = [rank for rank, item in enumerate(top, 1) if item in relevant]
        rows["recall"].append(len(good) / size)
        rows["precision"].append(len(good) / k)
        rows["hit_rate"].append(float(bool(good)))
        best = sum(1 / math.log2(rank + 1) for rank in range(1, min(k, size) + 1))
        rows["ndcg"].append(sum(1 / math.log2(rank + 1) for rank in good) / best)
        rows["mrr"].append(1 / good[0] if good else 0.0)
        hits, total = hits + len(good), total + size
        listed += [item for item in top if item >= 0]
    values = {f"{name}@{k}": float(np.mean(column)) if column else math.nan for name, column in rows.items()}
    values[f"pooled_recall@{k}"] = hits / total if total else math.nan
    values[f"coverage@{k}"] = len(set(listed)) / len(counts)
    share = [count / max(sum(counts), 1) for count in counts]
    smooth = [(count + 1) / (sum(counts) + len(counts)) for count in counts]
    nothing = math.nan if not listed else 0.0
    values[f"popularity@{k}"] = nothing + float(np.mean([share[i] * len(counts) for i in listed] or [0]))
    values[f"novelty@{k}"] = nothing + float(np.mean([-math.log2(smooth[i]) for i in listed] or [0]))
    return values


@settings(deadline=None, max_examples=60)
@given(items=st.integers(1, 30), queries=st.integers(0, 12), seed=st.integers(0, 1000))
def test_measures_are_those_of_a_loop(items: int, queries: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lists = [rng.permutation(items)[:12].tolist() for _ in range(queries)]
    lists = [own + [-1] * (12 - len(own)) for own in lists]
    wanted = [set(rng.integers(0, items, rng.integers(0, 6)).tolist()) for _ in range(queries)]
    missing = rng.integers(0, 2, queries).tolist()
    counts = rng.integers(0, 50, items)
    pairs = np.array([(q, i) for q, own in enumerate(wanted) for i in own], np.int64).reshape(-1, 2)
    relevant = ItemSets.of(pairs[:, 0], pairs[:, 1], queries)
    array = np.array(lists, np.int64).reshape(queries, 12)
    whole = CatalogueMeasures([1, 5, 12, 40], items, counts)
    whole.update(array, relevant, np.array(missing, np.int64))
    expected: dict[str, float] = {}
    for k in (1, 5, 12, 40):
        expected |= by_loop(lists, wanted, missing, k, counts.tolist())
    assert whole.compute() == pytest.approx(expected, nan_ok=True, abs=1e-12)
    assert whole.queries == sum(1 for own, absent in zip(wanted, missing) if len(own) + absent)
    # In two parts, and added up as those of two processes are.
    half = queries // 2
    parts = [CatalogueMeasures([1, 5, 12, 40], items, counts) for _ in range(2)]
    for part, begin, end in zip(parts, (0, half), (half, queries)):
        part.update(array[begin:end], relevant.rows(begin, end), np.array(missing[begin:end], np.int64))
    parts[0].load(parts[0].state() + parts[1].state())
    assert parts[0].compute() == pytest.approx(expected, nan_ok=True, abs=1e-12)
    assert parts[0].queries == whole.queries


def test_the_baseline_is_the_most_popular_unseen_items() -> None:
    counts = np.array([5, 9, 9, 0, 7])
    seen = ItemSets.of(np.array([1, 1, 2, 2, 2, 2]), np.array([1, 4, 0, 1, 2, 4]), 4)
    found = MostPopular(counts).search(4, 3, banned=seen)
    np.testing.assert_array_equal(found.items, [[1, 2, 4], [2, 0, 3], [3, -1, -1], [1, 2, 4]])
    np.testing.assert_array_equal(MostPopular(counts).search(1, 7).items, [[1, 2, 4, 0, 3, -1, -1]])


def test_lengths_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        CatalogueMeasures([0], 3)
    with pytest.raises(ValueError, match=r"interactions must be \[3\]"):
        CatalogueMeasures([1], 3, np.ones(4))
