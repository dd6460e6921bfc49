"""A balanced tree of items: which items are under which node, by an order or by their vectors.

    level 0              0                 the root
    level 1        1           2           the children of node c are n·c + 1 … n·c + n
    level 2      3   4       5   6         leaves, an item each

A node's items are divided among its children as evenly as they go, so that the shape depends on the number of
items alone; a node of one item has one child until the last level.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
_ROUNDS = 20
"""Most rounds of 2-means at a split."""


@dataclass(frozen=True)
class Level:
    """The nodes of a level, from left to right.

    Attributes:
        codes: int64 [nodes], ascending.
        starts: int64 [nodes], where the items of each begin in the order of the leaves.
    """

    codes: Ints
    starts: Ints


@dataclass(frozen=True)
class ItemTree:
    """A tree over items.

    Attributes:
        branching: most children of a node.
        order: int64 [items], the items from left to right.
        levels: from the root to the leaves.
    """

    branching: int
    order: Ints
    levels: list[Level]


def levels_of(count: int, branching: int) -> list[Level]:
    """The levels of a tree of so many items."""
    levels = [Level(np.zeros(1, np.int64), np.zeros(1, np.int64))]
    sizes = np.array([count])
    while sizes.max(initial=0) > 1 or len(levels) < 2:
        parts = np.minimum(sizes, branching)
        place = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        codes = np.repeat(levels[-1].codes, parts) * branching + 1 + place
        sizes = np.repeat(sizes // parts, parts) + (place < np.repeat(sizes % parts, parts))
        levels.append(Level(codes, np.cumsum(sizes) - sizes))
    return levels


def tree_by_order(order: Ints, branching: int) -> ItemTree:
    """The tree whose leaves are in this order, such as that of categories."""
    return ItemTree(branching, np.asarray(order, np.int64), levels_of(len(order), branching))


def tree_by_vectors(vectors: Floats, branching: int) -> ItemTree:
    """The tree in which items under a node have vectors near to each other.

    Items are divided in two by 2-means of fixed sizes, and so on until each child has its part. Nothing
    is drawn: the first centres are an item far from the mean, and the one farthest from that.
    """
    count = len(vectors)
    levels = levels_of(count, branching)
    order = np.arange(count)
    for level, below in itertools.pairwise(levels):
        # Runs of children that are still together: where their items begin, and their children.
        firsts = np.append(np.searchsorted(below.starts, level.starts), len(below.starts))
        bounds = np.append(below.starts, count)
        while (np.diff(firsts) > 1).any():
            wide = np.flatnonzero(np.diff(firsts) > 1)
            middles = (firsts[wide] + firsts[wide + 1]) // 2
            order = _halved(vectors, order, bounds[firsts[wide]], bounds[middles], bounds[firsts[wide + 1]])
            firsts = np.sort(np.append(firsts, middles))
    return ItemTree(branching, order, levels)


def _halved(vectors: Floats, order: Ints, begins: Ints, cuts: Ints, ends: Ints) -> Ints:
    """The order in which, of each run from begin to end, items up to the cut are near to one centre."""
    sizes, left = ends - begins, cuts - begins
    run = np.repeat(np.arange(len(sizes)), sizes)
    offsets = np.cumsum(sizes) - sizes
    place = np.arange(len(run)) - offsets[run]
    at = begins[run] + place
    own = order[at]
    x = np.asarray(vectors[own], np.float32)
    one = x[_farthest(x, np.add.reduceat(x, offsets) / sizes[:, None], run, offsets)]
    other = x[_farthest(x, one, run, offsets)]
    sides = np.sort(np.append(offsets, offsets + left))
    sorted_rows = np.arange(len(run))
    for _ in range(_ROUNDS):
        # |x − one|² − |x − other|², but for what is the same in a run.
        towards = np.einsum("ij,ij->i", x, (other - one)[run])
        now = np.lexsort((towards, run))
        if np.array_equal(now, sorted_rows):
            break
        sorted_rows = now
        means = np.add.reduceat(x[sorted_rows], sides)
        one = (means[::2] / left[:, None]).astype(np.float32)
        other = (means[1::2] / (sizes - left)[:, None]).astype(np.float32)
    result = order.copy()
    result[at] = own[sorted_rows]
    return result


def _farthest(x: Floats, centres: Floats, run: Ints, offsets: Ints) -> Ints:
    """The row of each run that is farthest from the run's centre."""
    gaps = x - centres[run]
    distance = np.einsum("ij,ij->i", gaps, gaps)
    rows: Ints = np.lexsort((-distance, run))[offsets]
    return rows


def most_frequent(codes: Ints, starts: Ints) -> Ints:
    """Of items in the order of the leaves, the commonest code under each node; of equals the lowest."""
    width = int(codes.max(initial=0)) + 1
    node = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(codes))))
    keys, counts = np.unique(node * width + codes, return_counts=True)
    best = np.lexsort((keys % width, -counts, keys // width))
    first = np.searchsorted(keys[best] // width, np.arange(len(starts)))
    found: Ints = keys[best][first] % width
    return found


def means_of(values: npt.NDArray[np.float64], starts: Ints) -> npt.NDArray[np.float64]:
    """Of items in the order of the leaves, the mean under each node."""
    sizes = np.diff(np.append(starts, len(values)))
    sums: npt.NDArray[np.float64] = np.add.reduceat(values, starts)
    return sums / sizes
