"""Tables of items, edges and nodes, as text whose first line names the columns and their types, or parquet.

id:int64⇥weight:float⇥attrs:string
17⇥0.5⇥17:shoes:19.9
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.hashing import hash_array
from recgrad.data.readers.files import SourceFile, list_files
from recgrad.data.readers.reader import READERS
from recgrad.errors import DataError

Ints = npt.NDArray[np.int64]
_TYPES = {"string": pa.string(), "float": pa.float64(), "double": pa.float64()}


def read_table(path: str, data: DataConfig, *, delimiter: str, what: str, example: str) -> pa.Table:
    """All rows of a table.

    Args:
        path: a file, glob or folder of text or parquet files, or a table address.
        data: how table addresses are read.
        delimiter: what separates the columns of a text file.
        what: the table is of, for errors: "item table".
        example: the first line of a text file, for errors; others have columns of these types.
    """
    if path.startswith("odps://"):
        reader = READERS["OdpsDataset"](path, data)
        names = reader.schema.names
        return pa.concat_tables(
            block.table for item in reader.fragments for block in reader.read(item, names)
        )
    parts = [_read_file(file, delimiter, what, example) for file in list_files(path, ("",))]
    try:
        return pa.concat_tables(parts)
    except pa.ArrowException as error:
        raise DataError(f"data: files of {what} '{path}' have different columns ({error})") from error


def keys_of(array: pa.Array, hashed: bool, where: str) -> Ints:
    """Ids as int64: integers as they are, or hashes of text.

    Args:
        array: the ids, without nulls.
        hashed: take hashes.
        where: what has these ids, for errors.
    """
    if hashed:
        return hash_array(array).view(np.int64)
    try:
        integers = array if array.type == pa.int64() else array.cast(pa.int64())
        keys: Ints = integers.to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise DataError(
            f"data: ids of {where} must be 64-bit integers, as the column of the data has numbers ({error}); "
            "write both as integers, or both as text"
        ) from error
    return keys


def is_hashed(kind: pa.DataType) -> bool:
    """Whether ids of this type are compared by hash: all but numbers that int64 holds."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    return kind == pa.uint64() or not (pa.types.is_integer(kind) or pa.types.is_floating(kind))


def weights_of(column: pa.ChunkedArray, where: str) -> npt.NDArray[np.float64]:
    """Weights, which are numbers of 0 or more."""
    try:
        weights = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise DataError(f"data: weights of {where} must be numbers ({error})") from error
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise DataError(f"data: {where} has weight {weights[bad[0]]} in row {bad[0]}; weights are 0 or more")
    return np.ascontiguousarray(weights)


def check_no_nulls(column: pa.ChunkedArray, what: str, where: str) -> None:
    """Refuse a column with a row without a value."""
    if column.null_count:
        row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
        raise DataError(f"data: {where} has no {what} in row {row}; give every row one")


def _read_file(file: SourceFile, delimiter: str, what: str, example: str) -> pa.Table:
    try:
        with file.open_arrow() as handle:
            if file.path.endswith((".parquet", ".parq", ".pq")):
                return pq.read_table(handle)
            return _read_text(handle.read_buffer(), file, delimiter, what, example)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"data: cannot read {what} {file.name} ({error})") from error


def _read_text(raw: pa.Buffer, file: SourceFile, delimiter: str, what: str, example: str) -> pa.Table:
    first = bytes(raw[: min(len(raw), 4096)]).split(b"\n", 1)[0]
    header = first.decode("utf-8", "replace").strip("\r")
    pairs = [part.partition(":")[::2] for part in header.split(delimiter)]
    names = [name.strip() for name, _ in pairs]
    types = {name.strip(): _TYPES.get(kind.strip().lower(), pa.int64()) for name, kind in pairs}
    if not all(kind for _, kind in pairs) or len(types) != len(names) or len(names) > example.count("⇥") + 1:
        raise DataError(
            f"data: {what} {file.name} must begin with a line such as '{example}' "
            f"with {delimiter!r} between the columns, got {header[:80]!r}"
        )
    lines = raw.slice(min(len(first) + 1, len(raw)))
    if not len(lines):
        return pa.schema(list(types.items())).empty_table()
    return pa.csv.read_csv(
        pa.BufferReader(lines),
        read_options=pa.csv.ReadOptions(column_names=names, block_size=16 << 20),
        parse_options=pa.csv.ParseOptions(delimiter=delimiter, quote_char=False),
        convert_options=pa.csv.ConvertOptions(column_types=types),
    )
