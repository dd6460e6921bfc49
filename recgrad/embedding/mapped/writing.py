"""Writes the trained rows of a table to files that are mapped and read as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recgrad.embedding.local.index import ENTRY_BYTES, MAX_LOAD, put
from recgrad.embedding.local.initializer import parse_init_fn, table_key
from recgrad.embedding.local.living.index import put as put_key
from recgrad.embedding.mapped.packing import PACKINGS, Bytes, packing_for
from recgrad.embedding.mapped.record import TableRecord
from recgrad.embedding.spec import TableSpec
from recgrad.kernels import cached_njit
from recgrad.kernels.simd import address

Pieces = Iterable[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]
_MIN_BITS = 4
_BLOCK_ROWS = 1 << 16


def write_table(
    folder: Path, stem: str, spec: TableSpec, touched: int, pieces: Pieces, *, precision: str, seed: int
) -> TableRecord:
    """Write `stem.rows`, and `stem.index` where that is smaller than room for every row.

    Args:
        folder: the bundle.
        stem: path of the files in it, without a suffix.
        spec: the table.
        touched: how many rows the pieces have.
        pieces: row numbers, ascending, and their values, some at a time.
        precision: FP32, FP16 or INT8.
        seed: of the values of the other rows.
    """
    name = packing_for(precision, spec.data_type)
    packing = PACKINGS[name]
    stride, bits = packing.stride(spec.dim), index_bits(touched)
    indexed = touched * stride + (ENTRY_BYTES << bits) < spec.num_rows * stride
    rows_file, index_file = f"{stem}.rows", f"{stem}.index" if indexed else ""
    index = np.zeros(1 << bits if indexed else 1, np.int64)
    stored = 0
    with open(folder / rows_file, "xb") as file:
        for rows, weights in pieces:
            packed = packing.pack(weights)
            if indexed:
                file.write(packed.data)
                _put_rows(index, bits, np.ascontiguousarray(rows), stored)
            else:
                for block in _spread_out(rows, packed, file.tell() // stride):
                    file.write(block.data)
            stored += len(rows)
        if not indexed:
            file.truncate(spec.num_rows * stride)
    assert stored == touched
    if indexed:
        with open(folder / index_file, "xb") as file:
            file.write(index.data)
    initializer = parse_init_fn(spec.init_fn, spec.num_rows, spec.dim, spec.name)
    return TableRecord(
        name=spec.name,
        num_rows=spec.num_rows,
        dim=spec.dim,
        packing=name,
        stored_rows=touched if indexed else spec.num_rows,
        rows_file=rows_file,
        index_file=index_file,
        index_bits=bits if indexed else 0,
        init_kind=initializer.kind,
        init_parameters=tuple(float(value) for value in initializer.parameters),
        key=table_key(seed, spec.name),
    )


def write_living(
    folder: Path,
    stem: str,
    spec: TableSpec,
    live: int,
    pieces: Pieces,
    stand_ins: npt.NDArray[np.float32],
    *,
    precision: str,
) -> TableRecord:
    """Write the rows of a table whose rows belong to ids, `stem.rows`, and `stem.index` from id to row.

    Args:
        folder, stem, spec, precision: as for `write_table`.
        live: how many ids the pieces have.
        pieces: ids and the values of their rows, some at a time.
        stand_ins: rows that ids without one read, by their hash.
    """
    name = packing_for(precision, spec.data_type)
    packing = PACKINGS[name]
    entries = max(int(live / MAX_LOAD) + 8, 16)
    index = np.zeros((entries, 2), np.int64)
    stored = len(stand_ins)
    with open(folder / f"{stem}.rows", "xb") as file:
        file.write(packing.pack(stand_ins).data)
        for keys, weights in pieces:
            file.write(packing.pack(weights).data)
            _put_keys(index, np.ascontiguousarray(keys), stored)
            stored += len(keys)
    assert stored == live + len(stand_ins)
    with open(folder / f"{stem}.index", "xb") as file:
        file.write(index.data)
    return TableRecord(
        name=spec.name,
        num_rows=stored,
        dim=spec.dim,
        packing=name,
        stored_rows=stored,
        rows_file=f"{stem}.rows",
        index_file=f"{stem}.index",
        index_bits=0,
        init_kind=0,
        init_parameters=(),
        key=0,
        entries=entries,
        stand_ins=len(stand_ins),
        capacity=spec.living.capacity if spec.living is not None else live,
    )


def index_bits(rows: int) -> int:
    """The least b with `rows` at most MAX_LOAD · 2^b, so that a search ends at an empty entry."""
    bits = _MIN_BITS
    while rows > MAX_LOAD * (1 << bits):
        bits += 1
    return bits


def _spread_out(rows: npt.NDArray[np.int64], packed: Bytes, after: int) -> Iterator[Bytes]:
    """Packed rows with zeros where rows are missing, from row `after` on."""
    for i in range(0, len(rows), _BLOCK_ROWS):
        own, stop = rows[i : i + _BLOCK_ROWS], int(rows[min(i + _BLOCK_ROWS, len(rows)) - 1]) + 1
        for start in range(after, stop, _BLOCK_ROWS):
            block = np.zeros((min(stop - start, _BLOCK_ROWS), packed.shape[1]), np.uint8)
            inside = slice(*np.searchsorted(own, [start, start + len(block)]))
            block[own[inside] - start] = packed[i : i + _BLOCK_ROWS][inside]
            yield block
        after = stop


@cached_njit(nogil=True)
def _put_keys(index, keys, first_row):  # type: ignore[no-untyped-def]
    where, size = address(index), len(index)
    for i in range(len(keys)):
        put_key(where, size, keys[i], first_row + i)


@cached_njit(nogil=True)
def _put_rows(index, bits, rows, first_slot):  # type: ignore[no-untyped-def]
    where = address(index)
    for i in range(len(rows)):
        put(where, bits, rows[i], first_slot + i)
