"""Metrics of where the wanted items stand in a ranking.

A query is a row of scores over candidates, or the rows of a group. Items of equal score
stand in random order and metrics are the expected value over it (McSherry & Najork, 2008):
a model that scores everything the same gets what chance gets, wherever the wanted item lies.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.errors import RecgradError
from recgrad.limits import Count
from recgrad.metrics.base import Metric, Value, check_numbers, finite_target, values_of
from recgrad.metrics.keys import Keys, keys_of
from recgrad.metrics.pairs import Floats, Ints, group_starts

CHUNK = 1 << 24


class Places(NamedTuple):
    """Where the wanted items stand, sorted by query.

    Attributes:
        query: the query of each wanted item, 0, 1, … without gaps.
        above: items of its query with a larger score.
        tied: items of its query with the same score, itself included.
        gain: its relevance, above 0.
    """

    query: Ints
    above: Ints
    tied: Ints
    gain: Floats

    @property
    def queries(self) -> int:
        """How many queries want anything."""
        return int(self.query[-1]) + 1 if len(self.query) else 0

    def by_query(self, values: npt.NDArray[Any]) -> Floats:
        """Sums over the wanted items of each query."""
        return np.bincount(self.query, weights=values, minlength=self.queries).astype(np.float64)


class RankingMetric(Metric):
    """Mean over queries of a value of the places of the wanted items.

    Without `grouping_key`, update() takes scores [rows, candidates], a query a row, and
    either the number of each row's wanted candidate [rows] or relevances [rows, candidates];
    state is two numbers, and no sort is made: the candidates above are counted. With it,
    update() takes flat scores, relevances and keys [rows], a query a group; every row is
    kept, 24 bytes, and about 100 while computing. Queries that want nothing are left out; nan when all do.

    Args:
        top_k: places that count; None for all.
        grouping_key: the field of the groups.
    """

    higher_is_better = True
    compares: ClassVar[Literal["probabilities", "values", "ranks"]] = "ranks"
    keeps_rows_with: ClassVar[tuple[str, ...]] = ("grouping_key",)
    total: Tensor
    queries: Tensor

    def __init__(self, *, top_k: Count | None = 5, grouping_key: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.top_k, self.grouping_key = top_k, grouping_key or None
        self.needs_key = self.grouping_key is not None
        if self.needs_key:
            self.add_rows("scores", torch.float64)
            self.add_rows("gains", torch.float64)
            self.add_rows("keys", torch.int64)
        else:
            self.add_sum("total")
            self.add_sum("queries", dtype=torch.int64)

    @property
    def display_name(self) -> str:
        """The name with k: `recall@5`."""
        return self.name.removesuffix("_at_k") + ("" if self.top_k is None else f"@{self.top_k}")

    def of_queries(self, places: Places, k: int) -> Floats:
        """The value of each query."""
        raise NotImplementedError

    def update(self, preds: Tensor, target: Tensor, key: Keys | None = None) -> None:
        """Take in queries."""
        if (key is not None) != self.needs_key:
            raise ValueError(
                f"{self.name}: keys go with grouping_key, got grouping_key {self.grouping_key!r} and "
                f"{'no keys' if key is None else 'keys'}"
            )
        if key is not None:
            preds = values_of(preds, self.name)
            gains = _gains(finite_target(target, len(preds), self.name), self.name)
            self.keep(scores=preds, gains=gains, keys=keys_of(key, len(preds), self.name).to(preds.device))
            return
        values = self._values(_places_of_batch(preds, target, self.name))
        self.total = self.total + float(values.sum())
        self.queries = self.queries + len(values)

    def measure(self) -> Value:
        """The mean over all queries so far."""
        reason = "no query has an item to find"
        if not self.needs_key:
            return self.total / self.queries if self.queries else self.undefined(reason)
        places = places_in_groups(self.column("scores"), self.column("gains"), self.column("keys"))
        return self.scalar(float(self._values(places).mean())) if places.queries else self.undefined(reason)

    def _values(self, places: Places) -> Floats:
        longest = int((places.above + places.tied).max(initial=1))
        return self.of_queries(places, longest if self.top_k is None else min(self.top_k, longest))


def chance_in_top(places: Places, k: int) -> Floats:
    """The probability that each wanted item is among the first k."""
    return np.clip((k - places.above) / places.tied, 0, 1)


def mean_over_ties(cumulative: Floats, places: Places) -> Floats:
    """The mean of a value of the rank over the ranks that each wanted item may take.

    cumulative[r] is the sum of the value over ranks 1 … r; ranks beyond its end are worth 0.
    """
    last = len(cumulative) - 1
    first, end = np.minimum(places.above, last), np.minimum(places.above + places.tied, last)
    total: Floats = cumulative[end] - cumulative[first]
    return total / places.tied


def first_places(places: Places) -> tuple[Ints, Ints, Ints]:
    """Of each query: items above its best wanted item, items tied with it, and wanted ones among those."""
    if not places.queries:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, empty
    starts = group_starts(places.query)
    above = np.minimum.reduceat(places.above, starts[:-1])
    best = places.above == above[places.query]
    wanted = np.bincount(places.query[best], minlength=places.queries)
    tied = np.zeros(places.queries, dtype=np.int64)
    tied[places.query[best]] = places.tied[best]
    return above, tied, wanted


def places_in_groups(scores: Floats, gains: Floats, keys: Ints) -> Places:
    """The places of the rows with a gain within the rows of their key."""
    order = np.lexsort((-scores, keys))
    scores, gains, keys = scores[order], gains[order], keys[order]
    groups = group_starts(keys)
    new = np.ones(len(scores), dtype=bool)
    new[1:] = (scores[1:] != scores[:-1]) | (keys[1:] != keys[:-1])
    starts = np.append(np.flatnonzero(new), len(scores))
    block, group = np.cumsum(new) - 1, np.repeat(np.arange(len(groups) - 1), np.diff(groups))
    wanted = np.flatnonzero(gains > 0)
    block, group = block[wanted], group[wanted]
    above, tied = starts[block] - groups[group], starts[block + 1] - starts[block]
    return Places(_numbered(group), above, tied, gains[wanted])


def places_of_index(preds: Tensor, target: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Of each row of scores: candidates above the wanted one, and candidates tied with it."""
    preds = preds.detach()
    check_numbers(preds, name)
    own = preds.gather(1, classes_of(target, preds, name)[:, None])
    return (preds > own).sum(1), (preds == own).sum(1)


def classes_of(target: Tensor, preds: Tensor, name: str) -> Tensor:
    """Numbers of columns [rows], which must exist."""
    target = finite_target(target, len(preds), name)
    classes = target.long()
    wrong = (classes < 0) | (classes >= preds.shape[1]) | (classes != target)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise RecgradError(
            f"{name}: label {target[row].item():g} at row {row} of the batch is not one of the "
            f"{preds.shape[1]} columns of predictions"
        )
    return classes


def _places_of_batch(preds: Tensor, target: Tensor, name: str) -> Places:
    if preds.dim() != 2:
        raise ValueError(f"{name}: preds must be [rows, candidates], got {list(preds.shape)}")
    if target.dim() == 1:
        above, tied = places_of_index(preds, target, name)
        rows = np.arange(len(preds))
        return Places(rows, above.cpu().numpy(), tied.cpu().numpy(), np.ones(len(rows)))
    if target.shape != preds.shape:
        raise ValueError(f"{name}: target must be {list(preds.shape)} like preds, got {list(target.shape)}")
    preds, gains = preds.detach(), _gains(target.detach(), name)
    check_numbers(preds, name)
    row, column = gains.nonzero(as_tuple=True)
    step = max(1, CHUNK // max(1, preds.shape[1]))
    counts = []
    for start in range(0, len(row), step):
        part = slice(start, start + step)
        scores, own = preds[row[part]], preds[row[part], column[part]][:, None]
        counts.append(torch.stack([(scores > own).sum(1), (scores == own).sum(1)]))
    above, tied = torch.cat(counts, 1).cpu() if counts else torch.zeros((2, 0), dtype=torch.int64)
    gain = gains[row, column].cpu().numpy()
    return Places(_numbered(row.cpu().numpy()), above.numpy(), tied.numpy(), gain)


def _gains(target: Tensor, name: str) -> Tensor:
    gains = target.double()
    if gains.numel() and not gains.min() >= 0:
        raise RecgradError(f"{name}: relevances must be at least 0, got {gains.min().item():g}")
    return gains


def _numbered(sorted_ids: Ints) -> Ints:
    """Ids renumbered 0, 1, … in their order."""
    new = np.zeros(len(sorted_ids), dtype=np.int64)
    new[1:] = sorted_ids[1:] != sorted_ids[:-1]
    return np.cumsum(new)
