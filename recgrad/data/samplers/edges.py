"""Edges from users to items: what a user has, or what it was shown and did not take."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.arrow_columns import one_chunk
from recgrad.data.samplers.mapped import array_of, mapped_table
from recgrad.data.samplers.tables import check_no_nulls, keys_of, read_table, weights_of
from recgrad.errors import DataError
from recgrad.kernels import cached_njit

Ints = npt.NDArray[np.int64]
_HEADER = "userid:int64⇥itemid:int64⇥weight:float"


@dataclass(frozen=True)
class EdgeSource:
    """Where edges are and how they are written.

    Attributes:
        path: a file, glob or folder of text or parquet files, or a table address; its columns are user, item
            and weight in this order, whatever their names.
        field_delimiter: what separates the columns of a text file.
        user_hashed, item_hashed: ids are compared by hash, see `tables.is_hashed`.
        by_weight: a user's edges are in the order of falling weight, and of the file among equals; else by
            item, each once.
    """

    path: str
    field_delimiter: str
    user_hashed: bool
    item_hashed: bool
    by_weight: bool


@dataclass(eq=False)
class Edges:
    """The items of each user.

    Attributes:
        name: for error messages.
        users: int64 [users], sorted keys.
        starts: int64 [users + 1], where the items of each user begin.
        items: int64 [edges], keys.
    """

    name: str
    users: Ints
    starts: Ints
    items: Ints

    @staticmethod
    def mapped(name: str, batch: pa.RecordBatch) -> Edges:
        """The edges that `as_batch` gave."""
        items = batch.column("items")
        starts, flat = (part.to_numpy(zero_copy_only=True) for part in (items.offsets, items.values))
        return Edges(name, array_of(batch, "users"), starts, flat)

    def as_batch(self) -> pa.RecordBatch:
        """All of it but the name: a row a user."""
        items = pa.LargeListArray.from_arrays(pa.array(self.starts), pa.array(self.items))
        return pa.RecordBatch.from_pydict({"users": pa.array(self.users), "items": items})

    def ranges(self, users: Ints) -> tuple[Ints, Ints]:
        """Where the items of each user begin and end; nowhere for a user without edges."""
        return _ranges(self.users, self.starts, users)


_edges: WeakValueDictionary[EdgeSource, Edges] = WeakValueDictionary()
_lock = threading.Lock()


def load_edges(source: EdgeSource, data: DataConfig) -> Edges:
    """The edges, mapped from a file; one object for all samplers that are alive in the process."""
    with _lock:
        edges = _edges.get(source)
        if edges is None:
            batch = mapped_table("edges", source.path, source, lambda: _load(source, data).as_batch())
            edges = Edges.mapped(source.path, batch)
            _edges[source] = edges
        return edges


def group_edges(name: str, users: Ints, items: Ints, weights: npt.NDArray[np.float64] | None = None) -> Edges:
    """Edges by user: with weights, the heaviest first and then in their order; else by item, each once."""
    if weights is None:
        order = np.lexsort((items, users))
        users, items = users[order], items[order]
        new = np.ones(len(users), np.bool_)
        new[1:] = (users[1:] != users[:-1]) | (items[1:] != items[:-1])
        users, items = users[new], items[new]
    else:
        order = np.lexsort((-weights, users))
        users, items = users[order], items[order]
    first = np.ones(len(users), np.bool_)
    first[1:] = users[1:] != users[:-1]
    starts = np.append(np.flatnonzero(first), len(users))
    return Edges(name, users[first], starts, items)


def _load(source: EdgeSource, data: DataConfig) -> Edges:
    where = f"edge table '{source.path}'"
    table = read_table(
        source.path, data, delimiter=source.field_delimiter, what="edge table", example=_HEADER
    ).combine_chunks()
    if table.num_columns < 2:
        raise DataError(
            f"data: {where} must have the columns user, item and weight, got {table.column_names}"
        )
    columns: list[pa.ChunkedArray] = table.columns
    check_no_nulls(columns[0], "user", where)
    check_no_nulls(columns[1], "item", where)
    users = keys_of(one_chunk(columns[0]), source.user_hashed, f"users of {where}")
    items = keys_of(one_chunk(columns[1]), source.item_hashed, f"items of {where}")
    weights = None
    if source.by_weight:
        weights = np.ones(len(users)) if len(columns) < 3 else weights_of(columns[2], where)
    return group_edges(source.path, users, items, weights)


@cached_njit(nogil=True)
def _ranges(known: Ints, starts: Ints, users: Ints) -> tuple[Ints, Ints]:
    begins, ends = np.zeros(len(users), np.int64), np.zeros(len(users), np.int64)
    if not len(known):
        return begins, ends
    first, count = known[0], len(known)
    every = known[-1] - first == count - 1  # each number between: no search
    for row in range(len(users)):
        user = users[row]
        if every:
            at = min(max(user, first), known[-1]) - first
        else:
            at = min(np.searchsorted(known, user), count - 1)
        if known[at] == user:
            begins[row], ends[row] = starts[at], starts[at + 1]
    return begins, ends
