"""The item table of a negative sampler."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.arrow_columns import one_chunk
from recgrad.data.hashing import hash_array
from recgrad.data.readers.files import SourceFile, list_files
from recgrad.data.readers.reader import READERS
from recgrad.data.samplers.alias import build_alias
from recgrad.errors import DataError


@dataclass(frozen=True)
class TableSource:
    """Where an item table is and how it is written.

    Attributes:
        path: a file, glob or folder of text or parquet files, or a table address.
        attributes: names of the attributes, in the order in which `attrs` joins them.
        attr_delimiter: what joins them.
        field_delimiter: what separates the columns of a text file.
        types: the type of each attribute's column in the training data, as text; "" keeps text.
        hashed: ids are compared by hash, see `is_hashed`.
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
    """

    name: str
    keys: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]
    columns: dict[str, pa.Array]
    keep: npt.NDArray[np.float64] = field(init=False)
    alias: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.keep, self.alias = build_alias(self.weights)

    def take(self, rows: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
        """The attributes of some items."""
        index = pa.array(rows)
        return {name: column.take(index) for name, column in self.columns.items()}


_tables: WeakValueDictionary[TableSource, ItemTable] = WeakValueDictionary()
_lock = threading.Lock()


def load_items(source: TableSource, data: DataConfig) -> ItemTable:
    """The item table; read once and shared by all samplers that are alive in the process."""
    with _lock:
        table = _tables.get(source)
        if table is None:
            table = _load(source, data)
            _tables[source] = table
        return table


def item_keys(array: pa.Array, hashed: bool, where: str) -> npt.NDArray[np.int64]:
    """Ids as int64: integers as they are, or hashes of text.

    Args:
        array: the ids, without nulls.
        hashed: take hashes.
        where: what has these ids, for errors.
    """
    if hashed:
        return hash_array(array).view(np.int64)
    try:
        keys: npt.NDArray[np.int64] = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise DataError(
            f"data: ids of {where} must be 64-bit integers, as item_id_field has numbers ({error}); "
            "write both as integers, or both as text"
        ) from error
    return keys


def is_hashed(kind: pa.DataType) -> bool:
    """Whether items of this type are compared by hash: all but numbers that int64 holds."""
    return kind == pa.uint64() or not (pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _load(source: TableSource, data: DataConfig) -> ItemTable:
    table = _read_table(source, data).combine_chunks()
    if "id" not in table.column_names:
        raise DataError(
            f"data: item table '{source.path}' has no column 'id' (has: {', '.join(table.column_names)})"
        )
    if table.num_rows == 0:
        raise DataError(f"data: item table '{source.path}' has no items")
    ids = table.column("id")
    if ids.null_count:
        row = int(np.flatnonzero(np.asarray(ids.is_null()))[0])
        raise DataError(f"data: item table '{source.path}' has no id in row {row}; give every item one")
    weights = _weights(table, source)
    columns = _attributes(table, source)
    keys = item_keys(one_chunk(ids), source.hashed, f"item table '{source.path}'")
    return ItemTable(source.path, keys, weights, columns)


def _read_table(source: TableSource, data: DataConfig) -> pa.Table:
    if source.path.startswith("odps://"):
        reader = READERS["OdpsDataset"](source.path, data)
        names = reader.schema.names
        return pa.concat_tables(
            block.table for item in reader.fragments for block in reader.read(item, names)
        )
    files = list_files(source.path, ("",))
    return pa.concat_tables([_read_file(file, source) for file in files])


def _read_file(file: SourceFile, source: TableSource) -> pa.Table:
    try:
        with file.open_arrow() as handle:
            if file.path.endswith((".parquet", ".parq", ".pq")):
                return pq.read_table(handle)
            return _read_text(handle, file, source)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"data: cannot read item table {file.name} ({error})") from error


def _read_text(handle: pa.NativeFile, file: SourceFile, source: TableSource) -> pa.Table:
    """A text file whose first line is `id:int64⇥weight:float⇥attrs:string`, columns parted by tabs."""
    raw = handle.read_buffer()
    delimiter = source.field_delimiter
    first = bytes(raw[: min(len(raw), 4096)]).split(b"\n", 1)[0]
    header = first.decode("utf-8", "replace").strip("\r")
    names = [part.partition(":")[0].strip() for part in header.split(delimiter)]
    if names[0] != "id" or not set(names) <= {"id", "weight", "attrs"} or len(set(names)) != len(names):
        raise DataError(
            f"data: item table {file.name} must begin with a line such as "
            "'id:int64⇥weight:float⇥attrs:string' "
            f"with {delimiter!r} between the columns, got {header[:80]!r}"
        )
    kinds = dict(part.partition(":")[::2] for part in header.split(delimiter))
    text_id = kinds["id"].strip().lower() == "string"
    types = {"id": pa.string() if text_id else pa.int64(), "weight": pa.float64(), "attrs": pa.string()}
    lines = raw.slice(min(len(first) + 1, len(raw)))
    if not len(lines):
        return pa.schema([(name, types[name]) for name in names]).empty_table()
    return pa.csv.read_csv(
        pa.BufferReader(lines),
        read_options=pa.csv.ReadOptions(column_names=names, block_size=16 << 20),
        parse_options=pa.csv.ParseOptions(delimiter=delimiter, quote_char=False),
        convert_options=pa.csv.ConvertOptions(column_types={name: types[name] for name in names}),
    )


def _weights(table: pa.Table, source: TableSource) -> npt.NDArray[np.float64]:
    if "weight" not in table.column_names:
        return np.ones(table.num_rows)
    try:
        weights = table.column("weight").cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise DataError(f"data: weights of item table '{source.path}' must be numbers ({error})") from error
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise DataError(
            f"data: item table '{source.path}' has weight {weights[bad[0]]} in row {bad[0]}; weights "
            "are 0 or more"
        )
    if not weights.sum() > 0:
        raise DataError(f"data: item table '{source.path}' has no item with a weight above 0")
    return np.ascontiguousarray(weights)


def _attributes(table: pa.Table, source: TableSource) -> dict[str, pa.Array]:
    """A column for each attribute: columns of their own, or cut from `attrs`."""
    if not source.attributes:
        return {}
    if set(source.attributes) <= set(table.column_names):
        columns = [one_chunk(table.column(name)) for name in source.attributes]
    elif "attrs" in table.column_names:
        columns = _split(one_chunk(table.column("attrs")), source)
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
        types.append(str(kind) if pa.types.is_integer(kind) or pa.types.is_floating(kind) else "")
    return tuple(types)
