"""The index that is served beside a model: opened, followed when it changes, searched for a user.

A changed index takes the place of the old one; one that cannot be read, or that another model has made, is
refused and the old one stays. An index is a folder, a table in PostgreSQL, which is searched there, or the
tree of a tdm model.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from recgrad.data.faults import Faults
from recgrad.data.ids import flat_ids
from recgrad.errors import RecgradError
from recgrad.retrieval.lists import ItemSets
from recgrad.serving.answers import RequestError, bad_row
from recgrad.serving.columns import RowReader, missing
from recgrad.serving.index import MANIFEST, Index
from recgrad.serving.joins import add_stored, signature
from recgrad.serving.postgres import PREFIXES, TABLE, PostgresIndex, shown, version_of
from recgrad.serving.requests import Row
from recgrad.serving.served import Served
from recgrad.serving.tree import FEATURES, SERVING
from recgrad.serving.tree_search import TreeIndex

logger = logging.getLogger("recgrad.serving")


ServedIndex = Index | PostgresIndex | TreeIndex


class Place(Protocol):
    """Where an index is."""

    @property
    def name(self) -> str:
        """What people see it called."""

    def signature(self) -> str:
        """What changes when the index does; raises OSError where there is none for a moment."""

    def open(self) -> ServedIndex:
        """The index that is there."""


@dataclass(frozen=True)
class Folder:
    """A folder of `recgrad index`."""

    path: Path

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def signature(self) -> str:
        """Of its manifest, which is written last."""
        return signature(self.path / MANIFEST)

    def open(self) -> Index:
        """The index."""
        return Index(self.path)


@dataclass(frozen=True)
class Table:
    """A table in PostgreSQL."""

    uri: str
    table: str

    @property
    def name(self) -> str:
        """Host, database and table, without the password."""
        return shown(self.uri, self.table)

    def signature(self) -> str:
        """The number of its version."""
        return version_of(self.uri, self.table)

    def open(self) -> PostgresIndex:
        """The index."""
        return PostgresIndex(self.uri, self.table)


@dataclass(frozen=True)
class Tree:
    """A folder of `recgrad tdm-tree`."""

    path: Path

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def signature(self) -> str:
        """Of both files that a search reads."""
        return " ".join(signature(self.path / name) for name in (SERVING, FEATURES))

    def open(self) -> TreeIndex:
        """The tree."""
        return TreeIndex(self.path)


def place_of(index: str | Path, table: str = "") -> Place:
    """Where an index is that a user names: a folder of vectors or of a tree, or the address of a database."""
    if str(index).startswith(PREFIXES):
        return Table(str(index), table or TABLE)
    if table:
        raise RecgradError(f"--table: goes with an index in PostgreSQL, got the folder {index}")
    path = Path(index)
    return Tree(path) if (path / SERVING).is_file() else Folder(path)


class IndexHolder:
    """The served index, and whether something newer lies in its place.

    Args:
        index: a folder, or postgresql://….
        every_s: how often it is looked at for changes.
        table: of an index in PostgreSQL.
    """

    def __init__(self, index: str | Path, every_s: float = 1.0, table: str = "") -> None:
        self.place, self._every_s = place_of(index, table), every_s
        try:
            self._seen = self.place.signature()
        except (OSError, RecgradError):  # opening it says what is wrong
            self._seen = ""
        self._index = self.place.open()
        self._looked = time.monotonic()
        self._fits: str | None = None
        self._lock = threading.Lock()

    def current(self, served: Served) -> ServedIndex:
        """The index to search for this model; raises where another model has made it."""
        with self._lock:
            if time.monotonic() - self._looked >= self._every_s:
                self._looked = time.monotonic()
                self._look(served)
            if self._fits != served.version:
                self._index.check_model(served.scorer)
                self._fits = served.version
            return self._index

    def _look(self, served: Served) -> None:
        try:
            now = self.place.signature()
        except OSError:  # between two versions there may be none for a moment
            return
        except RecgradError as error:
            logger.warning("cannot look at %s for changes: %s", self.place.name, error)
            return
        if now == self._seen:
            return
        self._seen = now
        try:
            index = self.place.open()
            index.check_model(served.scorer)
        except (RecgradError, OSError) as error:
            logger.warning("refused %s, the old index stays: %s", self.place.name, error)
            return
        self._index = index
        logger.info("took up %s, %d items", self.place.name, len(index))


def recommend_rows(
    served: Served,
    index: ServedIndex,
    users: Sequence[Row],
    *,
    k: int,
    condition: str | None,
    exclude: Sequence[Any],
    seen: str | None = None,
) -> list[dict[str, list[Any]]]:
    """The best items of each user, by ids, with their similarities.

    Args:
        served: the model, and stored columns of users.
        index: the items.
        users: rows of the user tower.
        k: items of a user.
        condition: which items may be found.
        exclude: items that no user gets.
        seen: the column of a user's own items, such as her history, which she does not get.

    Raises:
        RequestError: a column of the user is missing, or has a bad value.
    """
    schema = index.user_schema(served.scorer)
    keys = {store.key: store.key_type for store in served.stores}
    faults = Faults()
    columns, unknown = RowReader(schema, keys).read_any(users, faults)
    columns = add_stored(
        columns, served.stores, {field.name: served.types[field.name] for field in schema}, faults
    )
    if (fault := faults.first()) is not None:
        raise RequestError(422, str(fault), [bad_row(fault, fault.row)])
    lacking = missing(schema.names, columns, unknown)
    if lacking is not None:
        raise RequestError(422, lacking)
    table = pa.table({name: columns[name] for name in schema.names})
    banned = _banned(index, table, exclude, seen)
    found = index.find(served.scorer, table, k, condition, banned)
    lists = []
    for items, scores in zip(found.items, found.scores):
        there = items >= 0
        lists.append({"items": index.ids_of(items[there]).to_pylist(), "scores": scores[there].tolist()})
    return lists


def _banned(index: ServedIndex, users: pa.Table, exclude: Sequence[Any], seen: str | None) -> ItemSets | None:
    """What each user must not get; None where there is nothing."""
    owners, items = [], []
    if exclude:
        numbers = index.numbers(pa.array([str(item) for item in exclude], pa.large_string()))
        owners.append(np.repeat(np.arange(users.num_rows), len(numbers)))
        items.append(np.tile(numbers, users.num_rows))
    if seen is not None:
        if seen not in users.column_names:
            raise RequestError(
                422, f"seen: the user tower has no column '{seen}' (has: {', '.join(users.column_names)})"
            )
        flat = flat_ids(users.column(seen), ";", f"seen: column '{seen}'")
        owners.append(flat.rows)
        items.append(index.numbers(flat.ids))
    if not owners:
        return None
    owner, item = np.concatenate(owners), np.concatenate(items)
    return ItemSets.of(owner[item >= 0], item[item >= 0], users.num_rows)
