"""A tree of items as its sampler sees it: nodes by level, and the ancestors of leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.samplers.alias import build_alias
from recgrad.data.samplers.edges import Edges
from recgrad.data.samplers.items import ItemTable
from recgrad.errors import DataError
from recgrad.kernels import cached_njit

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_TRIES = 64
"""Draws that are refused before the rest of a level is looked at as a whole."""


@dataclass(frozen=True)
class Tree:
    """Nodes of a tree whose root is level 0 and whose leaves are the last level.

    Attributes:
        nodes: all nodes, and one of level −1 that stands for no node.
        starts: int64 [levels + 1], where the nodes of each level begin in `order`.
        order: int64 [nodes], rows of `nodes`, level after level.
        places: int64 [nodes], the place of each row in its level.
        ancestors: int64 [leaves, levels − 2], places in levels 1, 2, … of each leaf's ancestors.
        keep, alias: the alias tables of all levels, one after another.
    """

    nodes: ItemTable
    starts: Ints
    order: Ints
    places: Ints
    ancestors: Ints
    keep: Floats
    alias: Ints

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return len(self.starts) - 1

    def size(self, level: int) -> int:
        """Nodes of a level."""
        return int(self.starts[level + 1] - self.starts[level])

    def drawable(self, level: int) -> int:
        """Nodes of a level that have weight."""
        rows = self.order[self.starts[level] : self.starts[level + 1]]
        return int((self.nodes.weights[rows] > 0).sum())

    def leaves(self, keys: Ints) -> Ints:
        """The place of each item among the leaves; -1 for what is no leaf."""
        rows = self.nodes.rows_of(keys)
        last = self.starts[-2]
        known = (rows >= 0) & np.isin(rows, self.order[last:])
        return np.where(known, self.places[rows], -1)

    def rows(self, places: Ints, level: int | Ints) -> Ints:
        """Rows of the node table of places in a level, or in a level each."""
        return self.order[self.starts[level] + places]


def build_tree(nodes: ItemTable, edges: Edges) -> Tree:
    """The tree of a node table with a column `tree_level`, and of edges from leaves to their ancestors."""
    where = f"node table '{nodes.name}'"
    try:
        column = nodes.columns["tree_level"].cast(pa.int64())
    except pa.ArrowException as error:
        raise DataError(f"data: tree_level of {where} must be whole numbers ({error})") from error
    levels = column.fill_null(-1).to_numpy(zero_copy_only=False)
    order = np.lexsort((np.arange(len(levels)), levels))
    order = order[levels[order] >= 0]
    count = int(levels.max(initial=-1)) + 1
    if count < 2:
        raise DataError(f"data: {where} has {count} levels; a tree has a root and leaves at least")
    starts = np.searchsorted(levels[order], np.arange(count + 1))
    places = np.full(len(levels), -1, np.int64)
    places[order] = np.arange(len(order)) - starts[levels[order]]
    tables = [build_alias(_level_weights(nodes, order, starts, i)) for i in range(count)]
    tree = Tree(
        nodes,
        starts,
        order,
        places,
        _ancestors(nodes, edges, levels, places, int(starts[-1] - starts[-2]), count),
        np.concatenate([keep for keep, _ in tables]),
        np.concatenate([alias for _, alias in tables]),
    )
    return tree


def _level_weights(nodes: ItemTable, order: Ints, starts: Ints, level: int) -> Floats:
    weights = nodes.weights[order[starts[level] : starts[level + 1]]]
    if not len(weights) or not weights.sum() > 0:
        raise DataError(f"data: node table '{nodes.name}' has no node with weight in level {level}")
    return weights


def _ancestors(nodes: ItemTable, edges: Edges, levels: Ints, places: Ints, leaves: int, count: int) -> Ints:
    """The place of each leaf's ancestor in each inner level below the root."""
    found = np.full((leaves, max(count - 2, 0)), -1, np.int64)
    children = nodes.rows_of(np.repeat(edges.users, np.diff(edges.starts)))
    parents = nodes.rows_of(edges.items)
    if (children < 0).any() or (parents < 0).any():
        first = edges.items[parents < 0] if (parents < 0).any() else edges.users
        raise DataError(
            f"data: edge table '{edges.name}' names node {int(first[0])} that node table '{nodes.name}' lacks"
        )
    inner = (levels[children] == count - 1) & (levels[parents] > 0) & (levels[parents] < count - 1)
    found[places[children[inner]], levels[parents[inner]] - 1] = places[parents[inner]]
    if (found < 0).any():
        leaf, level = np.argwhere(found < 0)[0]
        key = nodes.keys[(levels == count - 1) & (places == leaf)][0]
        raise DataError(
            f"data: leaf {int(key)} has no ancestor of level {level + 1} in edge table '{edges.name}'; "
            "each leaf needs an edge to every ancestor but the root"
        )
    return found


def draw_nodes(tree: Tree, own: Ints, levels: Ints, counts: Ints, seed: np.uint64) -> Ints:
    """Places of other nodes of the same levels, drawn by weight without repetition, int64 [rows, Σ counts].

    Args:
        tree: the tree.
        own: int64 [rows, levels], the place in each level that a row has itself.
        levels: int64 [levels].
        counts: int64 [levels], nodes to draw in each; the level has more that have weight.
        seed: of the draws.
    """
    weights = tree.nodes.weights[tree.order]
    drawn: Ints = _draw(tree.keep, tree.alias, weights, tree.starts, own, levels, counts, seed)
    return drawn


@cached_njit(nogil=True)
def _draw(
    keep: Floats,
    alias: Ints,
    weights: Floats,
    starts: Ints,
    own: Ints,
    levels: Ints,
    counts: Ints,
    seed: np.uint64,
) -> Ints:
    rows = len(own)
    drawn = np.empty((rows, counts.sum()), np.int64)
    taken = np.zeros((starts[1:] - starts[:-1]).max(), np.bool_)
    state = seed
    for row in range(rows):
        column = 0
        for i in range(len(levels)):
            start = starts[levels[i]]
            size = np.uint64(starts[levels[i] + 1] - start)
            taken[own[row, i]] = True
            for _ in range(counts[i]):
                place = np.int64(-1)
                for _ in range(_TRIES):
                    state, first = _next(state)
                    state, second = _next(state)
                    slot = np.int64(((first >> np.uint64(32)) * size) >> np.uint64(32))
                    chance = np.float64(second >> np.uint64(11)) * 2.0**-53
                    if chance >= keep[start + slot]:
                        slot = alias[start + slot]
                    if not taken[slot]:
                        place = slot
                        break
                if place < 0:
                    state, first = _next(state)
                    chance = np.float64(first >> np.uint64(11)) * 2.0**-53
                    place = _one_of_the_rest(weights[start : start + np.int64(size)], taken, chance)
                taken[place] = True
                drawn[row, column] = place
                column += 1
            taken[own[row, i]] = False
            for at in range(column - counts[i], column):
                taken[drawn[row, at]] = False
    return drawn


@cached_njit(nogil=True)
def _next(state: np.uint64) -> tuple[np.uint64, np.uint64]:
    """The next state and random word of splitmix64 (Steele et al. 2014)."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    word = state
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state, word ^ (word >> np.uint64(31))


@cached_njit(nogil=True)
def _one_of_the_rest(weights: Floats, taken: npt.NDArray[np.bool_], chance: float) -> int:
    """A place that is not taken, by weight."""
    total = 0.0
    for i in range(len(weights)):
        if not taken[i]:
            total += weights[i]
    rest, last = chance * total, -1
    for i in range(len(weights)):
        if not taken[i] and weights[i] > 0:
            last = i
            rest -= weights[i]
            if rest < 0:
                break
    return last
