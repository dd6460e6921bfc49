"""The best items of an index for every user of some files, as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.ids import KnownIds, flat_ids, plain_ids
from recgrad.data.readers.reader import Reader
from recgrad.data.readers.tables import open_table, read_table
from recgrad.errors import DataError, RecgradError
from recgrad.export.towers import Embedder, embedded_blocks, write_tables
from recgrad.retrieval.lists import Array, Found, Ints, ItemSets

USERS = 4096  # that are searched for at a time


class Searched(Protocol):
    """What may be found: `View` and `PostgresView`."""

    count: int

    def search(self, vectors: Array, k: int, banned: ItemSets | None = None) -> Found:
        """The k best items of each query."""


class Numbered(Protocol):
    """Items that have ids and numbers."""

    @property
    def id_field(self) -> str:
        """The column of ids."""

    def numbers(self, ids: pa.Array) -> Ints:
        """The numbers of ids, −1 for those that it has not."""

    def ids_of(self, numbers: Array) -> pa.Array:
        """The ids of items by number."""


class Items(Numbered, Protocol):
    """An index, wherever it is: `Index` and `PostgresIndex`."""

    path: Any

    def check_model(self, embedder: Any) -> None:
        """Raise unless a model is that of the index."""

    def view(self, condition: str | None = None) -> Searched:
        """What a filter leaves of it."""


class History:
    """What users have seen, to be left out: pairs of a user and an item, or of a user and several.

    Args:
        path: files with the columns of users and items.
        index: whose items they are.
        user_field: the column of users.
        item_field: the column of items: one id, a list, or text joined by commas.
        data: says how text files are written.
    """

    def __init__(
        self, path: str, index: Numbered, user_field: str, item_field: str, data: DataConfig | None
    ) -> None:
        users, items = [], []
        for table in read_table(open_table(path, data), [user_field, item_field]):
            flat = flat_ids(table.column(item_field), ",", f"{path}: column '{item_field}'")
            numbers = index.numbers(flat.ids)
            there = numbers >= 0
            owners = plain_ids(table.column(user_field), f"{path}: column '{user_field}'")
            users.append(owners.take(pa.array(flat.rows[there])))
            items.append(numbers[there])
        owners = pa.concat_arrays(users).dictionary_encode()
        self._users = KnownIds(owners.dictionary, path)
        self._sets = ItemSets.of(
            np.asarray(owners.indices, np.int64), np.concatenate(items), len(self._users)
        )

    def of(self, ids: pa.Array) -> ItemSets:
        """The items of some users; none for those that it does not know."""
        numbers = self._users.numbers(ids)
        known = np.flatnonzero(numbers >= 0)
        own = self._sets.take(numbers[known])
        return ItemSets.of(known[own.queries], own.items, len(ids))


def recommend(
    embedder: Embedder,
    index: Items,
    users_path: str,
    output_path: str | Path,
    *,
    k: int = 100,
    user_field: str = "user_id",
    condition: str | None = None,
    history_path: str | None = None,
    item_field: str | None = None,
) -> int:
    """Write the k best items of every user; returns the number of users.

    Parquet files have a row for each user, with the lists `items` and `scores`; text files one for each
    user and item. Users come in the order of their files.

    Args:
        embedder: the model that made the index.
        index: the items.
        users_path: files with the columns of the user tower and `user_field`.
        output_path: a .parquet or .csv file.
        k: items of a user; fewer only where fewer may be found.
        user_field: the column of user ids.
        condition: a filter of items, such as `price < 20`.
        history_path: files with pairs of users and items to leave out.
        item_field: the column of items there; that of the index if None.
    """
    target = check_output(output_path, k)
    index.check_model(embedder)
    view = index.view(condition)
    if not view.count:
        raise RecgradError(f"recommend: no item of index '{index.path}' passes the filter '{condition}'")
    reader = open_table(users_path, embedder.data)
    check_user_field(reader, user_field)
    history = None
    if history_path is not None:
        history = History(history_path, index, user_field, item_field or index.id_field, embedder.data)
    count = 0

    def tables() -> Iterator[pa.Table]:
        nonlocal count
        for table, vectors in embedded_blocks(embedder, reader, "user", [user_field]):
            for begin in range(0, table.num_rows, USERS):
                users = table.column(user_field).slice(begin, USERS)
                ids = plain_ids(users, f"users: column '{user_field}'")
                banned = None if history is None else history.of(ids)
                found = view.search(vectors[begin : begin + USERS], k, banned)
                count += len(ids)
                yield (in_rows if target.suffix == ".csv" else in_lists)(user_field, users, index, found)

    write_tables(target, tables(), {})
    return count


def check_output(output_path: str | Path, k: int) -> Path:
    """The file to write, of a kind that can be written, for a k that can be."""
    if k < 1:
        raise RecgradError(f"recommend: k must be at least 1, got {k}")
    target = Path(output_path)
    if target.suffix not in (".parquet", ".csv"):
        raise RecgradError(f"recommend: output '{target}' must end with .parquet or .csv")
    return target


def check_user_field(reader: Reader, user_field: str) -> None:
    """Raise where the users' files have no column of ids."""
    if reader.schema.get_field_index(user_field) < 0:
        names = ", ".join(reader.schema.names)
        raise DataError(
            f"recommend: column '{user_field}' is not in the users' files (have: {names}); --user-id names it"
        )


def _flat(found: Found) -> tuple[Ints, Ints, Any, Any]:
    rows, places = np.nonzero(found.items >= 0)
    return rows, places, found.items[rows, places], found.scores[rows, places]


def in_lists(name: str, users: pa.ChunkedArray, index: Numbered, found: Found) -> pa.Table:
    """A row for each user, with the lists `items` and `scores`."""
    rows, _, items, scores = _flat(found)
    starts = np.zeros(len(users) + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=len(users)), out=starts[1:])
    ids = index.ids_of(items)
    offsets = pa.array(starts, pa.int64())
    return pa.table(
        {
            name: users,
            "items": pa.LargeListArray.from_arrays(offsets, ids),
            "scores": pa.LargeListArray.from_arrays(offsets, pa.array(scores)),
        }
    )


def in_rows(name: str, users: pa.ChunkedArray, index: Numbered, found: Found) -> pa.Table:
    """A row for each user and item."""
    rows, places, items, scores = _flat(found)
    ids = index.ids_of(items)
    columns = {name: users.take(pa.array(rows)), "rank": places + 1, index.id_field: ids, "score": scores}
    return pa.table(columns)
