"""Exact search against a sort of float64 products."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.errors import RecgradError
from recgrad.retrieval.exact import PackedVectors, best_scores
from recgrad.retrieval.lists import ItemSets


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def whole_numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Vectors whose products are exact in float32, with many ties."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def by_sorting(
    scores: np.ndarray, k: int, allowed: np.ndarray | None = None, banned: ItemSets | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The first k of a stable sort of each row."""
    scores = np.array(scores, np.float64)
    if allowed is not None:
        scores[:, ~allowed] = -np.inf
    if banned is not None:
        scores[banned.queries, banned.items] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    best = np.take_along_axis(scores, order, 1)
    pad = ((0, 0), (0, k - order.shape[1]))
    best = np.pad(best, pad, constant_values=-np.inf)
    return np.where(best > -np.inf, np.pad(order, pad), -1), best


def random_sets(rng: np.random.Generator, queries: int, items: int, share: float) -> ItemSets:
    query, item = np.nonzero(rng.random((queries, items)) < share)
    return ItemSets.of(query, item, queries)


@settings(deadline=None, max_examples=60)
@given(
    items=st.integers(1, 150),
    queries=st.integers(0, 20),
    dim=st.integers(1, 40),
    k=st.integers(1, 170),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    masked=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_finds_what_a_stable_sort_finds(
    items: int, queries: int, dim: int, k: int, share: float, masked: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    vectors, asked = whole_numbers(rng, items, dim), whole_numbers(rng, queries, dim)
    allowed = rng.random(items) < 0.5 if masked else None
    banned = random_sets(rng, queries, items, share) if share else None
    expected, values = by_sorting(asked @ vectors.T, k, allowed, banned)
    for found in (
        PackedVectors(vectors).search(asked, k, allowed=allowed, banned=banned),
        best_scores(asked @ vectors.T, k, allowed=allowed, banned=banned),
    ):
        np.testing.assert_array_equal(found.items, expected)
        np.testing.assert_array_equal(found.scores, values)


def test_many_parts_and_blocks_give_the_same_bits_as_one_thread(threads: None) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((30_001, 24), np.float32)
    vectors[10_000:20_000] = vectors[:10_000]  # ties across parts
    asked = rng.standard_normal((500, 24), np.float32)
    packed = PackedVectors(vectors)
    torch.set_num_threads(1)
    alone = packed.search(asked, 50)
    torch.set_num_threads(5)
    together = packed.search(asked, 50)
    np.testing.assert_array_equal(alone.items, together.items)
    np.testing.assert_array_equal(alone.scores, together.scores)
    for rows in (slice(7, 8), slice(3, 5), slice(9, 15)):
        few = packed.search(asked[rows], 50)
        np.testing.assert_array_equal(few.items, alone.items[rows])
        np.testing.assert_array_equal(few.scores, alone.scores[rows])
    exact = asked.astype(np.float64) @ vectors.T.astype(np.float64)
    np.testing.assert_allclose(np.take_along_axis(exact, alone.items, 1), alone.scores, rtol=1e-5, atol=1e-5)
    kth = np.sort(exact, 1)[:, -50]
    assert (alone.scores[:, -1] >= kth - 1e-4).all()


@pytest.mark.parametrize("descending", [False, True])
def test_items_in_the_order_of_their_scores(descending: bool) -> None:
    """The order that replaces every kept item again and again."""
    column = np.arange(20_000, dtype=np.float32)[:: -1 if descending else 1]
    found = PackedVectors(column[:, None]).search(np.ones((3, 1)), 10)
    expected = np.arange(10) if descending else 19_999 - np.arange(10)
    np.testing.assert_array_equal(found.items, [expected] * 3)


def test_minus_zero_ties_with_zero() -> None:
    found = PackedVectors(np.array([[-0.0], [0.0], [-0.0]])).search(np.array([[1.0], [-1.0]]), 3)
    np.testing.assert_array_equal(found.items, [[0, 1, 2]] * 2)


def test_packing_keeps_the_vectors() -> None:
    vectors = np.random.default_rng(1).standard_normal((37, 5), np.float32)
    packed = PackedVectors(vectors)
    np.testing.assert_array_equal(packed.vectors(), vectors)
    np.testing.assert_array_equal(packed.vectors(np.array([36, 0, 16])), vectors[[36, 0, 16]])


def test_bad_vectors_are_refused() -> None:
    with pytest.raises(RecgradError, match="item vector 1 has numbers that are not finite"):
        PackedVectors(np.array([[1.0], [np.nan]]))
    packed = PackedVectors(np.ones((2, 3)))
    with pytest.raises(RecgradError, match="query vector 0"):
        packed.search(np.full((1, 3), np.inf), 1)
    with pytest.raises(ValueError, match=r"queries must be \[queries, 3\]"):
        packed.search(np.ones((1, 4)), 1)
    with pytest.raises(ValueError, match="k must be at least 1"):
        packed.search(np.ones((1, 3)), 0)
    with pytest.raises(RecgradError, match="scores of query 1 are nan"):
        best_scores(np.array([[np.inf, -np.inf], [np.nan, 1]]), 1)


def test_search_needs_no_torch() -> None:
    code = """
import sys, numpy as np
from recgrad.retrieval.exact import PackedVectors
found = PackedVectors(np.eye(5000, 8)).search(np.eye(3, 8), 2)
assert found.items[:, 0].tolist() == [0, 1, 2], found
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
