"""Searches the segments of an index: exactly, or by faiss where they have such an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recgrad.retrieval.approximate import ApproximateIndex, Settings
from recgrad.retrieval.exact import PackedVectors
from recgrad.retrieval.interests import best_of_pairs, search_interests
from recgrad.retrieval.lists import Array, Bools, Floats, Found, Ints, ItemSets
from recgrad.retrieval.similarity import EUCLID, query_side, similarities

GATHERED = 0.5  # a filter that leaves less than this share is searched in a copy of what it leaves
FEW = 32  # queries for which no copy is made


@dataclass(frozen=True)
class Segment:
    """Items that came together.

    Attributes:
        table: ids and columns.
        packed: vectors.
        approximate: the faiss index of them, if it has one.
    """

    table: pa.Table
    packed: PackedVectors
    approximate: ApproximateIndex | None

    @classmethod
    def read(cls, folder: Path, kind: str, settings: Settings) -> Segment:
        """A segment of a folder."""
        table = pq.read_table(folder / "items.parquet")
        panels = np.load(folder / "panels.npy", mmap_mode="r")
        path = folder / "faiss.index"
        approximate = ApproximateIndex.read(str(path), kind, settings) if path.exists() else None
        return cls(table, PackedVectors.of_panels(panels, table.num_rows), approximate)


class View:
    """The items of an index that may be found.

    Args:
        segments: of the index.
        similarity: of the model.
        allowed: bool [items]; None for all.
        boosted: whether something is added to the similarities of items.
    """

    def __init__(
        self, segments: Sequence[Segment], similarity: str, allowed: Bools | None, *, boosted: bool = False
    ) -> None:
        self.similarity, self.allowed, self.boosted = similarity, allowed, boosted
        starts = np.cumsum([0, *(segment.table.num_rows for segment in segments)])
        self.count = int(starts[-1] if allowed is None else allowed.sum())
        self._parts = [
            (segment, int(start), None if allowed is None else allowed[start:end])
            for segment, start, end in zip(segments, starts, starts[1:])
        ]

    def search(self, vectors: Array, k: int, banned: ItemSets | None = None) -> Found:
        """The k best items of each query, by number in the index, with their similarities.

        Never fewer than k while as many may be found: where an approximate index finds fewer, those
        queries are searched for exactly.

        Args:
            vectors: [queries, dim] or [queries, interests, dim], as the user tower gives them.
            k: how many.
            banned: numbers of items that each query must not find.
        """
        asked = query_side(vectors, self.similarity, self.boosted)
        found = search_interests(lambda rows, sets: self._search(rows, k, sets), asked, banned)
        if self.similarity == EUCLID and vectors.ndim == 2:
            return similarities(found, vectors, self.similarity)
        return found

    def _search(self, queries: Floats, k: int, banned: ItemSets | None) -> Found:
        parts = [self._in_segment(*part, queries, k, banned) for part in self._parts]
        if len(parts) == 1:
            return parts[0]
        items, scores = (np.concatenate([part[i] for part in parts], axis=1) for i in range(2))
        rows, places = np.nonzero(items >= 0)
        return best_of_pairs(rows, items[rows, places], scores[rows, places], len(queries), k)

    def _in_segment(
        self,
        segment: Segment,
        start: int,
        allowed: Bools | None,
        queries: Floats,
        k: int,
        banned: ItemSets | None,
    ) -> Found:
        own = None if banned is None else _of_range(banned, start, start + segment.table.num_rows)
        if segment.approximate is None:
            found = self._exact(segment, allowed, queries, k, own)
        else:
            found = self._approximate(segment, segment.approximate, allowed, queries, k, own)
        return Found(np.where(found.items < 0, -1, found.items + start), found.scores)

    def _exact(
        self, segment: Segment, allowed: Bools | None, queries: Floats, k: int, banned: ItemSets | None
    ) -> Found:
        few = len(queries) < FEW
        if allowed is None or few or allowed.mean() > GATHERED:
            return segment.packed.search(queries, k, allowed=allowed, banned=banned)
        numbers, packed = self._gathered[id(segment)]
        if banned is not None:
            place = np.full(len(allowed), -1, np.int64)
            place[numbers] = np.arange(len(numbers))
            there = place[banned.items]
            banned = ItemSets.of(banned.queries[there >= 0], there[there >= 0], len(queries))
        found = packed.search(queries, k, banned=banned)
        return Found(
            np.where(found.items < 0, -1, numbers[found.items]) if len(numbers) else found.items, found.scores
        )

    @cached_property
    def _gathered(self) -> dict[int, tuple[Ints, PackedVectors]]:
        """What is allowed of each segment, in a copy."""
        copies = {}
        for segment, _, allowed in self._parts:
            assert allowed is not None
            numbers = np.flatnonzero(allowed)
            copies[id(segment)] = (numbers, PackedVectors(segment.packed.vectors(numbers)))
        return copies

    def _approximate(
        self,
        segment: Segment,
        index: ApproximateIndex,
        allowed: Bools | None,
        queries: Floats,
        k: int,
        banned: ItemSets | None,
    ) -> Found:
        more = 0 if banned is None or not len(banned.items) else int(banned.sizes.max())
        possible = segment.table.num_rows if allowed is None else int(allowed.sum())
        if possible <= k + more:
            return self._exact(segment, allowed, queries, k, banned)
        found = index.search(queries, k + more, segment.packed.vectors, allowed)
        if banned is not None:
            rows, places = np.nonzero((found.items >= 0) & ~banned.contain(found.items))
            found = best_of_pairs(
                rows, found.items[rows, places], found.scores[rows, places], len(queries), k
            )
        short = np.flatnonzero(found.items[:, k - 1] < 0)
        if len(short):
            sets = None if banned is None else banned.take(short)
            again = self._exact(segment, allowed, queries[short], k, sets)
            found.items[short], found.scores[short] = again.items, again.scores
        return found


def _of_range(sets: ItemSets, start: int, end: int) -> ItemSets:
    """The items of some range, numbered from its start."""
    there = (sets.items >= start) & (sets.items < end)
    return ItemSets.of(sets.queries[there], sets.items[there] - start, len(sets.starts) - 1)
