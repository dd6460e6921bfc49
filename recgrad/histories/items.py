"""The catalogue of a log: every item once, how often it trains, and its attributes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recgrad.data.readers.tables import open_table, read_table
from recgrad.errors import DataError
from recgrad.histories.rows import Rows, Sorted
from recgrad.histories.settings import HistorySettings

ID, WEIGHT = "id", "weight"


class ItemCounts:
    """Items of a log, counted in the events that train.

    Args:
        column: of items.
    """

    def __init__(self, column: str) -> None:
        self.column = column
        self._parts: list[pa.Table] = []

    def add(self, events: Sorted, train: Rows) -> None:
        """Count some users' events; those that no training row has count 0."""
        used = np.zeros(events.table.num_rows + 1, np.int64)
        np.add.at(used, train.begin, 1)
        np.add.at(used, train.next + 1, -1)
        weight = (np.cumsum(used)[:-1] > 0).astype(np.int64)
        found = pa.table({ID: events.table.column(self.column), WEIGHT: pa.array(weight)})
        self._parts.append(_summed(found))

    @property
    def table(self) -> pa.Table:
        """Ids, ascending, and their counts."""
        self._parts = [_summed(pa.concat_tables(self._parts))]
        return self._parts[0].sort_by(ID)

    def largest(self) -> int | None:
        """The largest id, where ids are whole numbers of 0 or more."""
        ids = self.table.column(ID)
        if not pa.types.is_integer(ids.type) or pc.min(ids).as_py() < 0:
            return None
        return int(pc.max(ids).as_py())


def _summed(table: pa.Table) -> pa.Table:
    return table.group_by(ID, use_threads=False).aggregate([(WEIGHT, "sum")]).rename_columns([ID, WEIGHT])


class Attributes:
    """The attributes of a log's items, from a table by the column of items; null for items it has not.

    Args:
        path: of the table; "" for none.
        ids: of the items, ascending.
        settings: which columns the log has.
    """

    def __init__(self, path: str, ids: pa.ChunkedArray, settings: HistorySettings) -> None:
        self._ids = ids.combine_chunks()
        self.columns = _attributes(path, ids, settings.item) if path else {}

    def check_free(self, path: str, taken: Collection[str]) -> None:
        """Raise a DataError for a name that a column of rows has already."""
        for name in self.columns:
            if name in taken:
                raise DataError(
                    f"data: column '{name}' of {path} has the name of one that is written; rename it"
                )

    def beside(self, table: pa.Table, item: str) -> pa.Table:
        """Rows with the attributes of their item, which is the column `item`."""
        if not self.columns:
            return table
        place = pc.index_in(table.column(item), value_set=self._ids)
        for name, values in self.columns.items():
            table = table.append_column(name, values.take(place))
        return table


def write_items(path: Path, items: pa.Table, attributes: Attributes, settings: HistorySettings) -> None:
    """Write ids, weights (how often an item is in the training rows), and attributes by id."""
    columns = {ID: items.column(ID), WEIGHT: items.column(WEIGHT), settings.item: items.column(ID)}
    pq.write_table(pa.table({**columns, **attributes.columns}), path)


def _attributes(path: str, ids: pa.ChunkedArray, key: str) -> dict[str, pa.ChunkedArray]:
    """The other columns of a table of items, for these ids; null where it has no such item."""
    reader = open_table(path)
    reader.check_columns([key])
    names = reader.schema.names
    taken = [name for name in names if name in (ID, WEIGHT) and name != key]
    if taken:
        raise DataError(f"data: column '{taken[0]}' of {path} has the name of one that is written; rename it")
    table = pa.concat_tables(list(read_table(reader, names)))
    if table.column(key).type != ids.type:
        try:
            table = table.set_column(names.index(key), key, table.column(key).cast(ids.type))
        except pa.ArrowInvalid as error:
            raise DataError(
                f"data: column '{key}' of {path} is not {ids.type} as in the log ({error})"
            ) from error
    if pc.count_distinct(table.column(key)).as_py() != table.num_rows:
        raise DataError(
            f"data: column '{key}' of {path} has an item twice, or none; keep one row of each item"
        )
    place = pc.index_in(ids, value_set=table.column(key).combine_chunks())
    return {name: table.column(name).take(place) for name in names if name != key}
