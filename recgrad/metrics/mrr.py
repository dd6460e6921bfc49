"""Mean reciprocal rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from recgrad.kernels import cached_njit
from recgrad.limits import Count
from recgrad.metrics import METRICS
from recgrad.metrics.pairs import Floats, Ints
from recgrad.metrics.ranking import Places, RankingMetric, first_places


@METRICS.register("mrr")
class MRR(RankingMetric):
    """Mean over queries of 1 / (rank of the best wanted item); 0 for a rank beyond top_k."""

    def __init__(self, *, top_k: Count | None = None, grouping_key: str | None = None, **kwargs: Any) -> None:
        super().__init__(top_k=top_k, grouping_key=grouping_key, **kwargs)

    def of_queries(self, places: Places, k: int) -> Floats:
        """The expected reciprocal rank of each query."""
        return _reciprocal(*first_places(places), k)


@cached_njit()
def _reciprocal(above: Ints, tied: Ints, wanted: Ints, k: int) -> Floats:
    """E[1 / (above + X)], X the first place that one of `wanted` takes among `tied` in random order."""
    values = np.zeros(len(above))
    for query in range(len(above)):
        n, m = tied[query], wanted[query]
        chance = m / n
        for place in range(1, min(n - m + 1, k - above[query]) + 1):
            values[query] += chance / (above[query] + place)
            chance *= (n - place - m + 1) / (n - place) if place < n else 0.0
    return values
