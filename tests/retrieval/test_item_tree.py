"""Trees of items: balanced, whole, and near items together."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.retrieval.item_tree import levels_of, means_of, most_frequent, tree_by_order, tree_by_vectors


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 300), branching=st.integers(2, 5))
def test_every_node_has_its_share_and_a_parent(count: int, branching: int) -> None:
    levels = levels_of(count, branching)
    assert levels[0].codes.tolist() == [0]
    assert levels[-1].starts.tolist() == list(range(count))
    deepest = 1
    while branching**deepest < count:
        deepest += 1
    assert len(levels) == deepest + 1
    for above, below in itertools.pairwise(levels):
        parents = (below.codes - 1) // branching
        assert np.array_equal(np.unique(parents), above.codes)
        assert (np.diff(below.codes) > 0).all()
        # Children begin where their parent does, and share its items evenly.
        first = np.searchsorted(parents, above.codes)
        assert np.array_equal(below.starts[first], above.starts)
        sizes = np.diff(np.append(below.starts, count))
        for code in above.codes:
            own = sizes[parents == code]
            assert own.max() - own.min() <= 1


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 80), branching=st.integers(2, 4), seed=st.integers(0, 99), same=st.booleans())
def test_trees_by_vectors_hold_every_item_once(count: int, branching: int, seed: int, same: bool) -> None:
    rng = np.random.default_rng(seed)
    vectors = np.ones((count, 3), np.float32) if same else rng.standard_normal((count, 3), np.float32)
    tree = tree_by_vectors(vectors, branching)
    assert sorted(tree.order.tolist()) == list(range(count))
    again = tree_by_vectors(vectors, branching)
    assert np.array_equal(tree.order, again.order)


@pytest.mark.parametrize("branching", [2, 3, 4])
def test_near_items_are_under_one_node(branching: int) -> None:
    rng = np.random.default_rng(1)
    centres = 10 * rng.standard_normal((branching**2, 8))
    group = rng.permutation(np.repeat(np.arange(branching**2), branching))
    vectors = (centres[group] + 0.01 * rng.standard_normal((len(group), 8))).astype(np.float32)
    tree = tree_by_vectors(vectors, branching)
    # The level above the leaves has as many nodes as there are groups, each of the groups' size.
    leaves = group[tree.order].reshape(-1, branching)
    assert (leaves == leaves[:, :1]).all()


def test_a_tree_of_an_order_keeps_it() -> None:
    tree = tree_by_order(np.array([2, 0, 1]), 2)
    assert tree.order.tolist() == [2, 0, 1]
    assert [level.codes.tolist() for level in tree.levels] == [[0], [1, 2], [3, 4, 5]]


@settings(max_examples=40, deadline=None)
@given(codes=st.lists(st.integers(0, 4), min_size=1, max_size=40), branching=st.integers(2, 4))
def test_attributes_of_nodes_against_a_count(codes: list[int], branching: int) -> None:
    for level in levels_of(len(codes), branching):
        ends = np.append(level.starts, len(codes))[1:]
        under = [codes[begin:end] for begin, end in zip(level.starts, ends)]
        common = [min(Counter(own).items(), key=lambda pair: (-pair[1], pair[0]))[0] for own in under]
        assert most_frequent(np.array(codes), level.starts).tolist() == common
        np.testing.assert_allclose(
            means_of(np.array(codes, np.float64), level.starts), [np.mean(own) for own in under]
        )
