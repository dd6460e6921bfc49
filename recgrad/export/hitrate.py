"""The hit rate of TorchEasyRec's tool: how many of the items to find are among the nearest k.

    of a row    |found ∩ wanted| / |wanted|
    in total    Σ |found ∩ wanted| / Σ |wanted|, over all rows with items to find

Ids are compared as text and nothing is masked. A row of several interests finds the k nearest of each,
or with `across` the k nearest of all; an item that several interests find counts once. Search is exact, or
by lists of near items as the tool does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from recgrad.data.ids import KnownIds, flat_ids
from recgrad.data.readers.tables import open_table, read_column, read_table
from recgrad.errors import DataError
from recgrad.export.towers import write_tables
from recgrad.export.vector_files import Vectors, interests_of, vectors_of
from recgrad.retrieval.approximate import ApproximateIndex, Settings
from recgrad.retrieval.exact import PackedVectors
from recgrad.retrieval.interests import merged
from recgrad.retrieval.lists import Array, Floats, Found, Ints, ItemSets
from recgrad.retrieval.similarity import item_side, query_side

ROWS = 4096


@dataclass(frozen=True)
class Columns:
    """Names of columns, as TorchEasyRec calls them."""

    request_id: str = "request_id"
    gt_items: str = "gt_items"
    user_embedding: str = "user_tower_emb"
    item_id: str = "item_id"
    item_embedding: str = "item_tower_emb"
    num_interests: str = ""


@dataclass
class HitRate:
    """What was found of what was wanted.

    Attributes:
        hits: items found.
        wanted: items to find.
        rows: rows with items to find.
        skipped: rows without.
        missing: wanted items that the catalogue has not; they count as misses.
    """

    hits: int = 0
    wanted: int = 0
    rows: int = 0
    skipped: int = 0
    missing: int = 0

    @property
    def value(self) -> float:
        """The hit rate in total; nan where nothing is wanted."""
        return self.hits / self.wanted if self.wanted else float("nan")


def hitrate(
    user_path: str,
    item_path: str,
    *,
    k: int = 200,
    euclid: bool = False,
    across: bool = False,
    columns: Columns | None = None,
    details_path: str | None = None,
    lists: Settings | None = None,
    interests: int | None = None,
    batch_size: int = ROWS,
) -> HitRate:
    """The hit rate of rows with vectors and items to find.

    Args:
        user_path: files of rows with vectors and items to find.
        item_path: files of all items with their vectors.
        k: items of a list.
        euclid: whether vectors are compared by distance.
        across: the k nearest of all interests of a row, instead of k for each.
        columns: names of columns.
        details_path: a file for the lists of every row.
        lists: search in lists of near items; exactly if None.
        interests: how many a row must have; any number if None.
        batch_size: rows that are searched for at a time.
    """
    names, total = columns or Columns(), HitRate()
    similarity = "EUCLID" if euclid else "INNER_PRODUCT"
    items = open_table(item_path)
    known = KnownIds(
        read_column(items, names.item_id).cast(pa.large_string()), f"{item_path}: '{names.item_id}'"
    )
    where = f"{item_path}: column '{names.item_embedding}'"
    vectors = item_side(vectors_of(read_column(items, names.item_embedding), where), similarity)
    search = _search(vectors, lists)

    def tables() -> Iterator[pa.Table]:
        asked = [names.gt_items, names.user_embedding, *([names.request_id] if details_path else [])]
        asked += [names.num_interests] if names.num_interests else []
        for block in read_table(open_table(user_path), asked):
            for begin in range(0, block.num_rows, batch_size):
                rows = block.slice(begin, batch_size)
                asking = _interests(rows, names, interests)
                found = _found(asking, search, similarity, k, across)
                yield _count(rows, names, known, found, total)

    if details_path is None:
        for _ in tables():
            pass
    else:
        write_tables(Path(details_path), tables(), {})
    return total


def _search(vectors: Floats, lists: Settings | None) -> Callable[[Array, int], Found]:
    """Search over items, by the exact kernel or in lists of near items."""
    if lists is None:
        return PackedVectors(vectors).search
    index = ApproximateIndex.build(vectors, "ivf", lists)
    return lambda queries, k: index.search(queries, k, vectors.__getitem__)


def _interests(table: pa.Table, names: Columns, wanted: int | None) -> Vectors:
    """The vectors of rows, [rows, interests, dim], 0 for interests that a row has not."""
    where = f"column '{names.user_embedding}'"
    vectors = interests_of(table.column(names.user_embedding), where)
    if wanted is not None and vectors.shape[1] != wanted:
        raise DataError(f"{where}: rows have {vectors.shape[1]} interests, --num-interests says {wanted}")
    if names.num_interests:
        numbers = table.column(names.num_interests).to_numpy()
        vectors = np.where(np.arange(vectors.shape[1])[None, :, None] < numbers[:, None, None], vectors, 0)
    return vectors


def _found(
    vectors: Vectors, search: Callable[[Array, int], Found], similarity: str, k: int, across: bool
) -> Found:
    """The items that each row finds."""
    query, interest = np.nonzero(vectors.any(axis=2))
    found = search(query_side(vectors[query, interest], similarity), k)
    return merged(found if across else _widened(found, vectors.shape[1]), query, len(vectors))


def _count(table: pa.Table, names: Columns, known: KnownIds, found: Found, total: HitRate) -> pa.Table:
    rows = table.num_rows
    flat = flat_ids(table.column(names.gt_items), ",", f"column '{names.gt_items}'")
    numbers = known.numbers(flat.ids.cast(pa.large_string()))
    strange = numbers < 0
    codes = np.asarray(flat.ids.filter(pa.array(strange)).dictionary_encode().indices, np.int64)
    numbers[strange] = len(known) + codes
    wanted = ItemSets.of(flat.rows, numbers, rows)
    hits = wanted.contain(found.items)
    total.hits += int(hits.sum())
    total.wanted += len(wanted.items)
    total.rows += int((wanted.sizes > 0).sum())
    total.skipped += int((wanted.sizes == 0).sum())
    total.missing += int((wanted.items >= len(known)).sum())
    return _details(table, names, known, found, hits, wanted.sizes)


def _widened(found: Found, interests: int) -> Found:
    """Lists with room for those of all interests, so that none is cut when they are put together."""
    more = ((0, 0), (0, found.items.shape[1] * (interests - 1)))
    return Found(
        np.pad(found.items, more, constant_values=-1), np.pad(found.scores, more, constant_values=-np.inf)
    )


def _details(
    table: pa.Table, names: Columns, known: KnownIds, found: Found, hits: np.ndarray, sizes: Ints
) -> pa.Table:
    if names.request_id not in table.column_names:
        return table

    def lists(chosen: np.ndarray, values: pa.Array) -> pa.Array:
        offsets = np.append(0, np.cumsum(chosen.sum(1)))
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)

    there = found.items >= 0
    rate = np.where(sizes > 0, hits.sum(1) / np.maximum(sizes, 1), np.nan)
    return pa.table(
        {
            names.request_id: table.column(names.request_id),
            "topk_ids": lists(there, known.ids.take(pa.array(found.items[there]))),
            "topk_dists": lists(there, pa.array(found.scores[there])),
            "hitrate": pa.array(rate, mask=sizes == 0),
            "hit_ids": lists(hits, known.ids.take(pa.array(found.items[hits]))),
        }
    )
