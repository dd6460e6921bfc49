"""Whole Arrow columns and tables: gathered, in one piece, without dictionaries, as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
_NUMBERS = {
    pa.from_numpy_dtype(kind): np.dtype(kind)
    for kind in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
}


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """NumPy's type of a type of numbers (or bools); `to_pandas_dtype` may import pandas, which is slow."""
    return _NUMBERS[kind] if kind in _NUMBERS else np.dtype(kind.to_pandas_dtype())


def as_array(values: npt.NDArray[Any]) -> pa.Array:
    """Numbers as an Arrow array, integers and floats in the same memory.

    `pa.array` imports pandas where it is installed, which takes as long as all else that loads a model.
    """
    if values.dtype == np.bool_:
        bits = pa.py_buffer(np.packbits(values, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits], 0)
    memory = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, memory], 0)


def as_numbers(array: pa.Array) -> npt.NDArray[Any]:
    """The numbers (or bools) of an array, in the same memory; what stands for nulls means nothing.

    `to_numpy` imports pandas where it is installed.
    """
    memory = array.buffers()[1]
    if not len(array) or memory is None:
        return np.empty(len(array), dtype_of(array.type))
    if array.type.id == pa.lib.Type_BOOL:
        bits = np.frombuffer(memory, np.uint8, (array.offset + len(array) + 7) // 8)
        return np.unpackbits(bits, bitorder="little")[array.offset : array.offset + len(array)].view(np.bool_)
    kind = dtype_of(array.type)
    found = np.frombuffer(memory, kind, len(array), array.offset * kind.itemsize)
    found.flags.writeable = False  # so that kernels are compiled for one kind of array
    return found


def nulls_of(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Which values are null."""
    return as_numbers(array.is_null())


def take_rows(array: pa.Array, rows: Ints) -> pa.Array:
    """The values at `rows`; NumPy gathers plain numbers several times faster than Arrow."""
    kind = array.type
    if array.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return array.take(pa.array(rows))
    return pa.array(array.to_numpy().take(rows), kind)


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; copied only when it lies in several pieces."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.array([], column.type)
    chunks = column.chunks
    if pa.types.is_dictionary(column.type):
        # Joining dictionaries costs as much as they hold, which few rows do not repay.
        if len(column) < 2 * sum(len(chunk.dictionary) for chunk in chunks):
            chunks = [chunk.dictionary_decode() for chunk in chunks]
        else:
            chunks = column.unify_dictionaries().chunks
    return pa.concat_arrays(chunks)


def without_dictionary(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """A dictionary column as its values; others as they are."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def as_bytes(table: pa.Table) -> bytes:
    """A small table as bytes, such as for the metadata of a file; `pa.ipc.open_stream` reads them."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found
