"""Measures of recommended lists over a whole catalogue: what was found, and what kind of items it is.

Of a query with the relevant set G and the list L of its first k items, r = 1 … k:

    recall@k     |L ∩ G| / |G|
    precision@k  |L ∩ G| / k
    hit_rate@k   1 if L ∩ G is not empty
    ndcg@k       Σ [L_r ∈ G] / log2(r + 1)  over  Σ_{r ≤ min(k, |G|)} 1 / log2(r + 1)
    mrr@k        1 / rank of the first relevant item; 0 if it is not among the first k

are means over the queries that have relevant items. Over all of these queries together:

    pooled_recall@k  Σ |L ∩ G| / Σ |G|: TorchEasyRec's hit rate, which counts users by their items
    coverage@k       different items in the lists / items of the catalogue
    popularity@k     mean over the recommended items of their share of all interactions, times the
                     number of items: 1 for lists drawn evenly from the catalogue
    novelty@k        mean over the recommended items of −log2 p(item), p = (c + 1) / (Σ c + items)

with c the interactions of an item in the training data. (Vargas & Castells 2011 for the last.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from recgrad.retrieval.lists import Array, Ints, ItemSets

Doubles = npt.NDArray[np.float64]

OF_QUERIES = ("recall", "precision", "hit_rate", "ndcg", "mrr")
BETTER_HIGH = (*OF_QUERIES, "pooled_recall")
OF_LISTS = ("coverage", "popularity", "novelty")
FOUND, WANTED = "found", "wanted"


def discounts(k: int) -> Doubles:
    """1 / log2(r + 1) of the ranks 1 … k."""
    return 1 / np.log2(np.arange(2, k + 2))


def values_of_queries(items: Ints, relevant: ItemSets, sizes: Array, k: int) -> dict[str, Doubles]:
    """The measures of each query at k, and how many of its relevant items were found.

    Args:
        items: [queries, at least k], best first; −1 for none.
        relevant: those of the catalogue.
        sizes: how many relevant items each query has, in the catalogue or not; at least 1.
        k: length of the lists.
    """
    hits = relevant.contain(items[:, :k])
    found = hits.sum(1).astype(np.float64)
    weights = discounts(k)
    ideal = np.cumsum(weights)[np.minimum(sizes, k) - 1]
    first = np.where(found > 0, hits.argmax(1), 0)
    return {
        "recall": found / sizes,
        "precision": found / k,
        "hit_rate": (found > 0).astype(np.float64),
        "ndcg": hits @ weights[: hits.shape[1]] / ideal,
        "mrr": np.where(found > 0, 1 / (first + 1), 0.0),
        FOUND: found,
    }


class CatalogueMeasures:
    """Measures of lists that come in blocks of queries; sums alone are kept, and a bit for each item.

    Args:
        ks: lengths of lists to measure.
        items: size of the catalogue.
        interactions: how often each item was chosen in the training data [items]; popularity and
            novelty need it.
    """

    def __init__(self, ks: Sequence[int], items: int, interactions: Array | None = None) -> None:
        self.ks = sorted(set(ks))
        if not self.ks or self.ks[0] < 1:
            raise ValueError(f"lengths of lists must be at least 1, got {list(ks)}")
        self.items, self.interactions = items, interactions
        if interactions is not None:
            if len(interactions) != items:
                raise ValueError(f"interactions must be [{items}], got {list(interactions.shape)}")
            counts = np.asarray(interactions, np.float64)
            total = counts.sum()
            self._popularity = counts * items / max(total, 1)
            self._novelty = -np.log2((counts + 1) / (total + items))
        self.queries = self.without = self.missing = 0
        self._sums = {
            k: dict.fromkeys((*OF_QUERIES, FOUND, WANTED, "listed", *self._kinds), 0.0) for k in self.ks
        }
        self._listed = {k: np.zeros(items, bool) for k in self.ks}

    @property
    def _kinds(self) -> tuple[str, ...]:
        return () if self.interactions is None else ("popularity", "novelty")

    def update(self, items: Ints, relevant: ItemSets, missing: Array | None = None) -> None:
        """Add queries.

        Args:
            items: the list of each [queries, k], best first; −1 for none.
            relevant: what each wants.
            missing: how many items each wants that are not in the catalogue, and are missed for sure.
        """
        missing = np.zeros(len(items), np.int64) if missing is None else np.asarray(missing)
        sizes = relevant.sizes + missing
        wants = sizes > 0
        self.queries += int(wants.sum())
        self.without += int(len(items) - wants.sum())
        self.missing += int(missing.sum())
        if not wants.all():
            keep = np.flatnonzero(wants)
            # Sets without items may be left out as they are: only starts change.
            relevant = ItemSets(np.append(relevant.starts[keep], relevant.starts[-1]), relevant.items)
            items, sizes = items[keep], sizes[keep]
        for k in self.ks:
            sums = self._sums[k]
            for name, values in values_of_queries(items, relevant, sizes, k).items():
                sums[name] += float(values.sum())
            sums[WANTED] += float(sizes.sum())
            listed = items[:, :k][items[:, :k] >= 0]
            sums["listed"] += len(listed)
            self._listed[k][listed] = True
            if self.interactions is not None:
                sums["popularity"] += float(self._popularity[listed].sum())
                sums["novelty"] += float(self._novelty[listed].sum())

    def state(self) -> Doubles:
        """All sums and bits in one array, for adding up those of several processes."""
        sums = [[*self._sums[k].values()] for k in self.ks]
        bits = [self._listed[k] for k in self.ks]
        return np.concatenate([[self.queries, self.without, self.missing], *sums, *bits]).astype(np.float64)

    def load(self, state: Doubles) -> None:
        """Take over a `state`, or the sum of several."""
        self.queries, self.without, self.missing = (int(value) for value in state[:3])
        at = 3
        for k in self.ks:
            names = list(self._sums[k])
            self._sums[k] = dict(zip(names, (float(v) for v in state[at : at + len(names)])))
            at += len(names)
        for k in self.ks:
            self._listed[k] = state[at : at + self.items] > 0
            at += self.items

    def compute(self) -> dict[str, float]:
        """The measures by name, such as `recall@20`; nan where no query has a relevant item."""
        values: dict[str, float] = {}
        for k in self.ks:
            sums = self._sums[k]
            for name in OF_QUERIES:
                values[f"{name}@{k}"] = _ratio(sums[name], self.queries)
            values[f"pooled_recall@{k}"] = _ratio(sums[FOUND], sums[WANTED])
            values[f"coverage@{k}"] = _ratio(float(self._listed[k].sum()), self.items)
            for name in self._kinds:
                values[f"{name}@{k}"] = _ratio(sums[name], sums["listed"])
        return values


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
