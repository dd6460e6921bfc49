"""Normalized discounted cumulative gain (Järvelin & Kekäläinen, 2002)."""

from __future__ import annotations

import numpy as np

from recgrad.metrics import METRICS
from recgrad.metrics.pairs import Floats, group_starts
from recgrad.metrics.ranking import Places, RankingMetric, mean_over_ties


@METRICS.register("ndcg_at_k")
class NDCGAtK(RankingMetric):
    """Mean over queries of DCG / ideal DCG, DCG = Σ over ranks r ≤ k of gain / log₂(r + 1).

    The gain is the relevance itself, 1 for a click.
    """

    def of_queries(self, places: Places, k: int) -> Floats:
        """The NDCG of each query."""
        discounts = 1 / np.log2(np.arange(2, k + 2))
        cumulative = np.concatenate([[0.0], np.cumsum(discounts)])
        gained = places.by_query(places.gain * mean_over_ties(cumulative, places))
        order = np.lexsort((-places.gain, places.query))
        rank = np.arange(len(order)) - group_starts(places.query)[places.query]
        worth = np.where(rank < k, discounts[np.minimum(rank, k - 1)], 0)
        return gained / places.by_query(places.gain[order] * worth)
