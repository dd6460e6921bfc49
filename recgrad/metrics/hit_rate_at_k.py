"""Share of queries that find anything they want."""

from __future__ import annotations

import numpy as np

from recgrad.kernels import cached_njit
from recgrad.metrics import METRICS
from recgrad.metrics.pairs import Floats, Ints
from recgrad.metrics.ranking import Places, RankingMetric, first_places


@METRICS.register("hit_rate_at_k")
class HitRateAtK(RankingMetric):
    """Share of queries with a wanted item among the first k."""

    def of_queries(self, places: Places, k: int) -> Floats:
        """The chance of a hit of each query."""
        return _hits(*first_places(places), k)


@cached_njit()
def _hits(above: Ints, tied: Ints, wanted: Ints, k: int) -> Floats:
    """1 − P(none of the `wanted` stands in the first k − above places of the tied ones)."""
    hits = np.empty(len(above))
    for query in range(len(above)):
        free = max(0, tied[query] - max(0, k - above[query]))
        miss = 1.0
        for i in range(wanted[query]):
            miss *= max(0.0, (free - i) / (tied[query] - i))
            if miss == 0.0:
                break
        hits[query] = 1.0 - miss
    return hits
