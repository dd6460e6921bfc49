"""The hit rate of TorchEasyRec's tool: how many of the items to find are among the nearest k.

    of a row    |found ∩ wanted| / |wanted|
    in total    Σ |found ∩ wanted| / Σ |wanted|, over all rows with items to find

Ids are compared as text and nothing is masked. A row of several interests finds the k nearest of each,
or with `across` the k nearest of all. Search is exact; an item that several interests find counts once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from recgrad.data.ids import KnownIds, flat_ids
from recgrad.data.readers.tables import open_table, read_column, read_table
from recgrad.export.towers import write_tables
from recgrad.export.vector_files import interests_of, vectors_of
from recgrad.retrieval.exact import PackedVectors
from recgrad.retrieval.interests import merged
from recgrad.retrieval.lists import Found, Ints, ItemSets
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
) -> HitRate:
    """The hit rate of rows with vectors and items to find; `details_path` takes the lists of every row."""
    names, total = columns or Columns(), HitRate()
    similarity = "EUCLID" if euclid else "INNER_PRODUCT"
    items = open_table(item_path)
    known = KnownIds(
        read_column(items, names.item_id).cast(pa.large_string()), f"{item_path}: '{names.item_id}'"
    )
    where = f"{item_path}: column '{names.item_embedding}'"
    packed = PackedVectors(item_side(vectors_of(read_column(items, names.item_embedding), where), similarity))

    def tables() -> Iterator[pa.Table]:
        asked = [names.gt_items, names.user_embedding, *([names.request_id] if details_path else [])]
        for block in read_table(open_table(user_path), asked):
            for begin in range(0, block.num_rows, ROWS):
                yield _count(block.slice(begin, ROWS), names, known, packed, similarity, k, across, total)

    if details_path is None:
        for _ in tables():
            pass
    else:
        write_tables(Path(details_path), tables(), {})
    return total


def _count(
    table: pa.Table,
    names: Columns,
    known: KnownIds,
    packed: PackedVectors,
    similarity: str,
    k: int,
    across: bool,
    total: HitRate,
) -> pa.Table:
    rows = table.num_rows
    vectors = interests_of(table.column(names.user_embedding), f"column '{names.user_embedding}'")
    query, interest = np.nonzero(vectors.any(axis=2))
    found = packed.search(query_side(vectors[query, interest], similarity), k)
    found = merged(found if across else _widened(found, vectors.shape[1]), query, rows)
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
