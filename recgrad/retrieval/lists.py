"""Lists of items: what was found for each query, and sets of items that belong to each."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]


class Found(NamedTuple):
    """The best items of each query, best first; where there are too few, items are −1 and scores −inf."""

    items: Ints  # [queries, k]
    scores: Floats


class ItemSets(NamedTuple):
    """A set of items for each query, such as those that a user has seen: ascending, query after query."""

    starts: Ints  # [queries + 1]
    items: Ints

    def rows(self, begin: int, end: int) -> ItemSets:
        """The sets of some queries."""
        starts = self.starts[begin : end + 1]
        return ItemSets(starts - starts[0], self.items[starts[0] : starts[-1]])

    def take(self, queries: Array) -> ItemSets:
        """The sets of these queries, which may repeat."""
        sizes = self.sizes[queries]
        starts = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=starts[1:])
        places = np.arange(starts[-1]) + np.repeat(self.starts[:-1][queries] - starts[:-1], sizes)
        return ItemSets(starts, self.items[places])

    @staticmethod
    def of(query: Array, item: Array, queries: int) -> ItemSets:
        """The sets of pairs (query, item) in any order, repeats left out."""
        query, item = np.asarray(query, np.int64), np.asarray(item, np.int64)
        order = np.lexsort((item, query))
        query, item = query[order], item[order]
        new = np.ones(len(query), bool)
        new[1:] = (query[1:] != query[:-1]) | (item[1:] != item[:-1])
        starts = np.zeros(queries + 1, np.int64)
        np.cumsum(np.bincount(query[new], minlength=queries), out=starts[1:])
        return ItemSets(starts, item[new])

    @property
    def queries(self) -> Ints:
        """The query of each item."""
        return np.repeat(np.arange(len(self.starts) - 1), self.sizes)

    def contain(self, items: Ints) -> Bools:
        """Whether each of the items [queries, n] is in the set of its query."""
        if not len(self.items):
            return np.zeros(items.shape, bool)
        width = max(int(self.items.max()), int(items.max(initial=0))) + 1
        own = self.queries * width + self.items
        asked = np.arange(len(items))[:, None] * width + items
        place = np.minimum(np.searchsorted(own, asked), len(own) - 1)
        return (own[place] == asked) & (items >= 0)

    @property
    def sizes(self) -> Ints:
        """How many items each set has."""
        return np.diff(self.starts)
