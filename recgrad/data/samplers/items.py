"""The item table of a negative sampler."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.arrow_columns import one_chunk
from recgrad.data.samplers.alias import build_alias
from recgrad.data.samplers.mapped import array_of, mapped_table
from recgrad.data.samplers.tables import check_no_nulls, keys_of, read_table, weights_of
from recgrad.errors import DataError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TableSource:
    """Where an item table is and how it is written.

    Attributes:
        path: a file, glob or folder of text or parquet files, or a table address.
        attributes: names of the attributes, in the order in which `attrs` joins them.
        attr_delimiter: what joins them.
        field_delimiter: what separates the columns of a text file.
        types: the type of each attribute's column in the training data, as text; "" keeps text.
        hashed: ids are compared by hash, see `tables.is_hashed`.
    """

    path: str
    attributes: tuple[str, ...]
    attr_delimiter: str
    field_delimiter: str
    types: tuple[str, ...]
    hashed: bool


@dataclass(eq=False)
class ItemTable:
    """Items with weights and attributes, ready for weighted draws.

    Attributes:
        name: for error messages.
        keys: int64 [items]: the ids, or the hashes of string ids.
        weights: float64 [items].
        columns: one array for each attribute.
        keep, alias: the alias table of the weights.
        order: int64 [items], the rows by ascending key, and of one key as they come.
        known: int64 [items], the keys in that order.
    """

    name: str
    keys: Ints
    weights: Floats
    columns: dict[str, pa.Array]
    keep: Floats
    alias: Ints
    order: Ints
    known: Ints

    @staticmethod
    def of(name: str, keys: Ints, weights: Floats, columns: Mapping[str, pa.Array]) -> ItemTable:
        """The table of items in memory."""
        order = np.argsort(keys, kind="stable")
        keep, alias = build_alias(weights)
        return ItemTable(name, keys, weights, dict(columns), keep, alias, order, keys[order])

    @staticmethod
    def mapped(name: str, batch: pa.RecordBatch) -> ItemTable:
        """The table that `as_batch` gave."""
        parts = {part: array_of(batch, part) for part in _PARTS}
        columns = {
            column.removeprefix(_ATTRIBUTE): batch.column(column)
            for column in batch.schema.names
            if column.startswith(_ATTRIBUTE)
        }
        return ItemTable(name, columns=columns, **parts)

    def as_batch(self) -> pa.RecordBatch:
        """All of it but the name."""
        parts = {part: pa.array(getattr(self, part)) for part in _PARTS}
        return pa.RecordBatch.from_pydict(
            {**parts, **{_ATTRIBUTE + name: column for name, column in self.columns.items()}}
        )

    @cached_property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self.weights.sum())

    def rows_of(self, keys: Ints) -> Ints:
        """The row of each id, the first where an id occurs twice; -1 for ids that the table lacks."""
        at = np.minimum(np.searchsorted(self.known, keys), len(self.known) - 1)
        return np.where(self.known[at] == keys, self.order[at], -1)

    def take(self, rows: Ints) -> dict[str, pa.Array]:
        """The attributes of some items."""
        index = pa.array(rows)
        return {
            name: column.take(index) if numbers is None else pa.array(numbers[rows])
            for (name, column), numbers in zip(self.columns.items(), self._numbers, strict=True)
        }

    @cached_property
    def _numbers(self) -> list[npt.NDArray[Any] | None]:
        """Attributes that are plain numbers, which NumPy takes faster than Arrow; None for others."""
        return [
            column.to_numpy(zero_copy_only=True)
            if (pa.types.is_integer(column.type) or pa.types.is_floating(column.type))
            and not column.null_count
            else None
            for column in self.columns.values()
        ]


_HEADER = "id:int64⇥weight:float⇥attrs:string"
_ATTRS = ("attrs", "feature")
_PARTS = ("keys", "weights", "keep", "alias", "order", "known")
_ATTRIBUTE = "attribute "
_tables: WeakValueDictionary[TableSource, ItemTable] = WeakValueDictionary()
_lock = threading.Lock()


def load_items(source: TableSource, data: DataConfig) -> ItemTable:
    """The item table, mapped from a file; one object for all samplers that are alive in the process."""
    with _lock:
        table = _tables.get(source)
        if table is None:
            batch = mapped_table("items", source.path, source, lambda: _load(source, data).as_batch())
            table = ItemTable.mapped(source.path, batch)
            _tables[source] = table
        return table


def _load(source: TableSource, data: DataConfig) -> ItemTable:
    where = f"item table '{source.path}'"
    table = read_table(
        source.path, data, delimiter=source.field_delimiter, what="item table", example=_HEADER
    ).combine_chunks()
    if "id" not in table.column_names:
        raise DataError(f"data: {where} has no column 'id' (has: {', '.join(table.column_names)})")
    if table.num_rows == 0:
        raise DataError(f"data: {where} has no items")
    check_no_nulls(table.column("id"), "id", where)
    keys = keys_of(one_chunk(table.column("id")), source.hashed, where)
    return ItemTable.of(source.path, keys, _weights(table, where), _attributes(table, source))


def _weights(table: pa.Table, where: str) -> npt.NDArray[np.float64]:
    if "weight" not in table.column_names:
        return np.ones(table.num_rows)
    weights = weights_of(table.column("weight"), where)
    if not weights.sum() > 0:
        raise DataError(f"data: {where} has no item with a weight above 0")
    return weights


def _attributes(table: pa.Table, source: TableSource) -> dict[str, pa.Array]:
    """A column for each attribute: columns of their own, or cut from `attrs`."""
    if not source.attributes:
        return {}
    if set(source.attributes) <= set(table.column_names):
        columns = [one_chunk(table.column(name)) for name in source.attributes]
    elif joined := next((name for name in _ATTRS if name in table.column_names), ""):
        columns = _split(one_chunk(table.column(joined)), source)
    else:
        missing = next(name for name in source.attributes if name not in table.column_names)
        raise DataError(
            f"data: item table '{source.path}' has neither a column '{missing}' nor 'attrs' "
            f"(has: {', '.join(table.column_names)})"
        )
    typed = zip(source.attributes, columns, source.types, strict=True)
    return {name: _typed(name, column, kind, source) for name, column, kind in typed}


def _split(attrs: pa.Array, source: TableSource) -> list[pa.Array]:
    parts = pc.split_pattern(attrs.fill_null(""), source.attr_delimiter)
    counts = pc.list_value_length(parts).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(counts != len(source.attributes))
    if len(wrong):
        raise DataError(
            f"data: item table '{source.path}' has {counts[wrong[0]]} attributes in row {wrong[0]} where "
            f"attr_fields names {len(source.attributes)}; check attr_fields and attr_delimiter"
        )
    flat = parts.flatten()
    step = len(source.attributes)
    return [flat.take(pa.array(np.arange(i, len(flat), step))) for i in range(step)]


def _typed(name: str, column: pa.Array, kind: str, source: TableSource) -> pa.Array:
    """Text as the number type that the column has in the training data; an empty text is null."""
    if not kind or not pa.types.is_string(column.type):
        return column
    empty = pc.equal(column, "")
    try:
        return pc.if_else(empty, pa.scalar(None, pa.string()), column).cast(pa.type_for_alias(kind))
    except pa.ArrowInvalid as error:
        raise DataError(
            f"data: attribute '{name}' of item table '{source.path}' is not {kind} as in the data ({error})"
        ) from error


def attribute_types(names: Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    """The number type of each attribute's column in the training data, "" where it has none."""
    types = []
    for name in names:
        index = schema.get_field_index(name)
        kind = schema.field(index).type if index >= 0 else pa.string()
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            kind = kind.value_type
        types.append(str(kind) if pa.types.is_integer(kind) or pa.types.is_floating(kind) else "")
    return tuple(types)
