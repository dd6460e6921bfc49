"""Mapped tables whose rows change while they are looked up: deltas are applied to them.

Files are mapped copy-on-write into room for all rows that a table may ever have, so that pages that no delta
has touched are still shared with other processes, and nothing is copied when a table grows. Rows are written
some at a time, and never while a lookup reads.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from recgrad.embedding.deltas.reading import Part
from recgrad.embedding.deltas.record import DeltaError, DeltaRecord
from recgrad.embedding.deltas.writing import DELETE, UPSERT
from recgrad.embedding.local.index import MAX_LOAD, find_or_add
from recgrad.embedding.local.index import find as find_slot
from recgrad.embedding.local.index import put as put_row
from recgrad.embedding.local.layout import BITS, COUNT, INDEX, READ, ROWS, STRIDE, WEIGHTS
from recgrad.embedding.local.living.index import close_gap, place
from recgrad.embedding.local.living.index import put as put_key
from recgrad.embedding.local.living.layout import ENTRIES, LINE_COLUMNS, SIZE, UNKNOWN_ROWS
from recgrad.embedding.local.memory import Region
from recgrad.embedding.mapped.packing import PACKINGS
from recgrad.embedding.mapped.record import TableRecord
from recgrad.embedding.mapped.tables import MappedTables, address_of, check_record
from recgrad.errors import BundleError
from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import FIRST, launch
from recgrad.kernels.simd import field, load_i64, load_u8, store_i64, store_u8

Array = npt.NDArray[Any]
CHUNK_ROWS = 8192  # that are written at a time: a lookup waits at most for so many
_MAP_PRIVATE, _MAP_FIXED = 0x02, 0x10
_READ, _WRITE = 1, 2


class MovingTables(MappedTables):
    """All tables of a bundle, to which deltas are applied; threads may share it, one applies."""

    def _map_table(self, folder: Path, i: int, record: TableRecord) -> None:
        check_record(record)
        packing = PACKINGS[record.packing]
        stride = packing.stride(record.dim)
        room = record.num_rows
        if record.entries:
            room = record.stand_ins + max(record.capacity, record.num_rows - record.stand_ins)
        line = self._matrix[i]
        line[[STRIDE, READ, ROWS, COUNT]] = stride, stride, room, record.stored_rows
        self._describe(line, i, record)
        line[WEIGHTS] = self._map_room(folder / record.rows_file, record.stored_rows * stride, room * stride)
        if record.entries:
            index = self._copy(folder / record.index_file).reshape(record.entries, 2)
            own = np.zeros(LINE_COLUMNS, np.int64)
            own[[ENTRIES, SIZE, UNKNOWN_ROWS]] = address_of(index), record.entries, record.stand_ins
            self._living[record.name] = own
            self._indexes[record.name] = index
            self._free[record.name] = _Free(record.stored_rows)
        elif record.index_file:
            index = self._copy(folder / record.index_file)
            line[[INDEX, BITS]] = address_of(index), record.index_bits
            self._indexes[record.name] = index

    def __init__(self, folder: Path, tables: Sequence[TableRecord], lookups: Sequence[Any]) -> None:
        self._lock = threading.Lock()
        self._regions: list[Region] = []
        self._indexes: dict[str, Array] = {}
        self._free: dict[str, _Free] = {}
        super().__init__(folder, tables, lookups)

    def _map_room(self, path: Path, size: int, room: int) -> int:
        """The address of `room` bytes of which the first `size` are the file's, for this process alone."""
        region = Region(room, f"rows of {path}", 1 << 62)
        self._regions.append(region)
        try:
            actual = path.stat().st_size
            if actual != size:
                raise BundleError(f"{path}: has {actual} bytes instead of {size}; copy the bundle again")
            if size and not _overlay(region, path, size):
                region.array(np.uint8, (size,))[:] = np.fromfile(path, np.uint8)
        except OSError as error:
            raise BundleError(f"{path}: cannot be read ({error.strerror}); copy the bundle again") from error
        return region.address

    def _copy(self, path: Path) -> Array:
        try:
            return np.fromfile(path, np.int64)
        except OSError as error:
            raise BundleError(f"{path}: cannot be read ({error.strerror}); copy the bundle again") from error

    def run(self, lookups: Sequence[str], lines: Array, threads: int = 1) -> None:
        """As `MappedTables.run`; rows stay as they are meanwhile."""
        with self._lock:
            super().run(lookups, lines, threads)

    # --- deltas ---

    def check_delta(self, record: DeltaRecord) -> None:
        """Refuse a delta that does not fit these tables, before anything is changed."""
        for table in record.tables:
            own = self.records.get(table.name)
            if own is None or own.dim != table.dim:
                raise DeltaError(f"delta {record.number}: table '{table.name}' is not the bundle's")

    def apply(self, part: Part) -> None:
        """Write, or take away, rows of a table, some at a time.

        Raises:
            DeltaError: a key is outside the table, or there is no room; rows before it are written.
        """
        record = self.records[part.table]
        packing = PACKINGS[record.packing]
        living = record.name in self._living
        for begin in range(0, len(part.keys), CHUNK_ROWS):
            keys = np.ascontiguousarray(part.keys[begin : begin + CHUNK_ROWS])
            packed = None if part.weights is None else packing.pack(part.weights[begin : begin + CHUNK_ROWS])
            if part.op == UPSERT:
                assert packed is not None
                (self._put_living if living else self._put)(record, keys, packed)
            elif part.op == DELETE:
                (self._take_living if living else self._take)(record, keys)
            elif living and packed is not None and len(keys) == record.stand_ins:
                with self._lock:
                    self._run(write_task, record, np.arange(len(keys)), packed)
            else:
                raise DeltaError(f"table '{record.name}': a delta has {part.op} rows that the bundle has not")

    def _run(self, task: Any, record: TableRecord, keys: Array, packed: Array | None, *more: Any) -> None:
        line = self._matrix[self._line[record.name]]
        launch(compiled(task), line, keys, len(keys), 0 if packed is None else packed, *more, tasks=1)

    def _check_rows(self, record: TableRecord, keys: Array) -> None:
        if len(keys) and (int(keys.min()) < 0 or int(keys.max()) >= record.num_rows):
            raise DeltaError(f"table '{record.name}': a delta has rows outside of {record.num_rows}")

    def _put(self, record: TableRecord, keys: Array, packed: Array) -> None:
        self._check_rows(record, keys)
        line = self._matrix[self._line[record.name]]
        grown = None
        if line[INDEX]:
            grown = self._grown(record.name, line, int(line[COUNT]) + len(keys))
        with self._lock:
            if grown is not None:
                self._indexes[record.name], bits = grown
                line[[INDEX, BITS]] = address_of(grown[0]), bits
            self._run(put_task if line[INDEX] else write_task, record, keys, packed)

    def _grown(self, name: str, line: Array, need: int) -> tuple[Array, int] | None:
        """A larger index with the same rows, where one is needed."""
        bits = int(line[BITS])
        if need <= MAX_LOAD * (1 << bits):
            return None
        while need > MAX_LOAD * (1 << bits) / 1.5:
            bits += 1
        index = np.zeros(1 << bits, np.int64)
        launch(compiled(reindex_task), self._indexes[name], len(self._indexes[name]), index, bits, tasks=1)
        return index, bits

    def _take(self, record: TableRecord, keys: Array) -> None:
        """Let rows read as if they had never been trained."""
        self._check_rows(record, keys)
        with self._lock:
            self._run(clear_task, record, keys, None)

    def _put_living(self, record: TableRecord, keys: Array, packed: Array) -> None:
        own, free = self._living[record.name], self._free[record.name]
        room = int(self._matrix[self._line[record.name], ROWS])
        index = None
        if free.live(record) + len(keys) > MAX_LOAD * int(own[SIZE]):
            index = np.zeros((int(2 * (free.live(record) + len(keys)) / MAX_LOAD) + 16, 2), np.int64)
            old = self._indexes[record.name]
            launch(compiled(rekey_task), old, len(old), index, len(index), tasks=1)
        free.make_room(0)
        with self._lock:
            if index is not None:
                self._indexes[record.name] = index
                own[[ENTRIES, SIZE]] = address_of(index), len(index)
            self._run(put_key_task, record, keys, packed, own, free.rows, free.numbers, room)
        if free.numbers[2]:
            raise DeltaError(
                f"table '{record.name}': a delta has more ids than its capacity {record.capacity}"
            )

    def _take_living(self, record: TableRecord, keys: Array) -> None:
        own, free = self._living[record.name], self._free[record.name]
        free.make_room(len(keys))
        with self._lock:
            self._run(take_key_task, record, keys, None, own, free.rows, free.numbers)


class _Free:
    """Rows of a living table that nobody has."""

    def __init__(self, high: int) -> None:
        self.rows = np.empty(64, np.int64)
        self.numbers = np.array([0, high, 0], np.int64)  # free rows, one past the highest, keys without room

    def live(self, record: TableRecord) -> int:
        return int(self.numbers[1] - self.numbers[0]) - record.stand_ins

    def make_room(self, more: int) -> None:
        count = int(self.numbers[0])
        if count + more > len(self.rows):
            rows = np.empty(2 * (count + more), np.int64)
            rows[:count] = self.rows[:count]
            self.rows = rows


def _overlay(region: Region, path: Path, size: int) -> bool:
    """Map a file over the beginning of a region, copy-on-write; False where that cannot be done."""
    if sys.platform != "linux":
        return False
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        flags = _MAP_PRIVATE | _MAP_FIXED
        return bool(call(region.address, size, _READ | _WRITE, flags, descriptor, 0) == region.address)
    finally:
        os.close(descriptor)


# Arguments of the kernels that write: the table's line, keys, count, packed rows, then their own.


@njit(nogil=True)
def _copy_row(source: int, target: int, size: int) -> None:
    at = 0
    while at + 8 <= size:
        store_i64(target + at, load_i64(source + at))
        at += 8
    while at < size:
        store_u8(target + at, load_u8(source + at))
        at += 1


@njit(nogil=True)
def write_task(a: int) -> None:
    """Write rows whose slots are their numbers."""
    table, keys, packed = field(a, FIRST), field(a, FIRST + 1), field(a, FIRST + 3)
    stride, weights = field(table, STRIDE), field(table, WEIGHTS)
    for i in range(field(a, FIRST + 2)):
        _copy_row(packed + i * stride, weights + field(keys, i) * stride, stride)


@njit(nogil=True)
def put_task(a: int) -> None:
    """Write rows of a table with an index."""
    table, keys, packed = field(a, FIRST), field(a, FIRST + 1), field(a, FIRST + 3)
    stride, weights = field(table, STRIDE), field(table, WEIGHTS)
    for i in range(field(a, FIRST + 2)):
        slot = find_or_add(table, field(keys, i))
        _copy_row(packed + i * stride, weights + slot * stride, stride)


@njit(nogil=True)
def clear_task(a: int) -> None:
    """Let rows be untrained."""
    table, keys = field(a, FIRST), field(a, FIRST + 1)
    stride, weights = field(table, STRIDE), field(table, WEIGHTS)
    for i in range(field(a, FIRST + 2)):
        slot = field(keys, i)
        if field(table, INDEX) != 0:
            slot = find_slot(table, slot)
        if slot >= 0:
            for at in range(stride):
                store_u8(weights + slot * stride + at, np.uint8(0))


@njit(nogil=True)
def put_key_task(a: int) -> None:
    """Write rows of ids. More arguments: the living line, free rows, their numbers, room."""
    table, keys, packed = field(a, FIRST), field(a, FIRST + 1), field(a, FIRST + 3)
    line, free, numbers = field(a, FIRST + 4), field(a, FIRST + 5), field(a, FIRST + 6)
    stride, weights = field(table, STRIDE), field(table, WEIGHTS)
    entries, size = field(line, ENTRIES), field(line, SIZE)
    for i in range(field(a, FIRST + 2)):
        key = field(keys, i)
        j = place(entries, size, key)
        if j >= 0:
            row = load_i64(entries + 16 * j + 8) - 1
        elif field(numbers, 0) > 0:
            store_i64(numbers, field(numbers, 0) - 1)
            row = field(free, field(numbers, 0))
            put_key(entries, size, key, row)
        elif field(numbers, 1) < field(a, FIRST + 7):
            row = field(numbers, 1)
            store_i64(numbers + 8, row + 1)
            put_key(entries, size, key, row)
        else:
            store_i64(numbers + 16, field(numbers, 2) + 1)
            continue
        _copy_row(packed + i * stride, weights + row * stride, stride)


@njit(nogil=True)
def take_key_task(a: int) -> None:
    """Take ids out. More arguments: the living line, free rows, their numbers."""
    keys = field(a, FIRST + 1)
    line, free, numbers = field(a, FIRST + 4), field(a, FIRST + 5), field(a, FIRST + 6)
    entries, size = field(line, ENTRIES), field(line, SIZE)
    for i in range(field(a, FIRST + 2)):
        j = place(entries, size, field(keys, i))
        if j >= 0:
            store_i64(free + 8 * field(numbers, 0), load_i64(entries + 16 * j + 8) - 1)
            store_i64(numbers, field(numbers, 0) + 1)
            close_gap(entries, size, j)


@njit(nogil=True)
def reindex_task(a: int) -> None:
    """Copy an index of rows into a larger one. Arguments: old, its entries, new, its bits."""
    old, new, bits = field(a, FIRST), field(a, FIRST + 2), field(a, FIRST + 3)
    for j in range(field(a, FIRST + 1)):
        entry = load_i64(old + 8 * j)
        if entry != 0:
            put_row(new, bits, (entry & 0xFFFFFFFF) - 1, entry >> 32)


@njit(nogil=True)
def rekey_task(a: int) -> None:
    """Copy an index of ids into a larger one. Arguments: old, its entries, new, its entries."""
    old, new, size = field(a, FIRST), field(a, FIRST + 2), field(a, FIRST + 3)
    for j in range(field(a, FIRST + 1)):
        row = load_i64(old + 16 * j + 8)
        if row > 0:
            put_key(new, size, load_i64(old + 16 * j), row - 1)
