"""Share of the wanted items that are found."""

from __future__ import annotations

import numpy as np

from recgrad.metrics import METRICS, TRAIN_METRICS
from recgrad.metrics.pairs import Floats
from recgrad.metrics.ranking import Places, RankingMetric, chance_in_top


@TRAIN_METRICS.register("recall_at_k")
@METRICS.register("recall_at_k")
class RecallAtK(RankingMetric):
    """Mean over queries of (wanted items among the first k) / (wanted items)."""

    def of_queries(self, places: Places, k: int) -> Floats:
        """The recall of each query."""
        found = places.by_query(chance_in_top(places, k))
        return found / np.bincount(places.query, minlength=places.queries)
