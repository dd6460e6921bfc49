"""The popularity baseline: the most popular items, without those that a user has seen."""

from __future__ import annotations

import numpy as np

from recgrad.retrieval.exact import PackedVectors
from recgrad.retrieval.lists import Array, Found, ItemSets


class MostPopular:
    """Recommends the items of the most interactions, the same to everyone; ties in item order.

    Args:
        interactions: how often each item was chosen [items].
    """

    def __init__(self, interactions: Array) -> None:
        self.order = np.argsort(-np.asarray(interactions, np.float64), kind="stable")

    def search(self, queries: int, k: int, *, banned: ItemSets | None = None) -> Found:
        """The lists of as many queries; scores are minus the rank among all items."""
        # No list reaches further down than past all that a query has seen.
        longest = 0 if banned is None or not len(banned.items) else int(banned.sizes.max())
        top = self.order[: k + longest]
        ranked = PackedVectors(-np.arange(len(top), dtype=np.float32)[:, None])
        if banned is not None:
            place = np.full(len(self.order), -1, np.int64)
            place[top] = np.arange(len(top))
            there = place[banned.items]
            banned = ItemSets.of(banned.queries[there >= 0], there[there >= 0], queries)
        found = ranked.search(np.ones((queries, 1), np.float32), k, banned=banned)
        return Found(np.where(found.items >= 0, top[found.items], -1), found.scores)
