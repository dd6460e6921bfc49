"""Which rows have changed since somebody last asked: a byte a slot that the update kernel sets.

A living table also keeps the keys that lost their rows, as they go. Rows that move on without being touched
(HISTORY) have changed whenever there was an update.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from numba import njit

from recgrad.embedding.engine import EmbeddingTable, TablePiece
from recgrad.embedding.local.layout import CHANGED
from recgrad.embedding.local.living import layout as at
from recgrad.embedding.local.living.index import find
from recgrad.embedding.local.living.table import LivingTable
from recgrad.embedding.local.memory import Region, address_of
from recgrad.embedding.local.table import Table
from recgrad.kernels import simd
from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import FIRST, launch
from recgrad.kernels.simd import field, load_i64, store_i64

Array = npt.NDArray[Any]
_PIECE = 8


class Changed(NamedTuple):
    """What became of a table, or of some columns of it.

    Attributes:
        keys: of the rows that have changed: row numbers, or ids of a living table.
        weights: their values now, float32 [keys, columns].
        gone: keys whose rows are as before they were trained, or have no row any more.
        stand_ins: what ids without a row read, [rows, dim], if that changed; else None.
        first_column: where the columns begin in the whole table.
    """

    keys: Array
    weights: Array
    gone: Array
    stand_ins: Array | None
    first_column: int = 0


class RowLog(Protocol):
    """The rows of a table of this process that have changed since the last `take`."""

    def mark(self, keys: Array) -> None:
        """Let rows count as changed, or as gone if they are not there."""

    def take(self) -> Changed:
        """What has changed; from now on it counts as known."""


@singledispatch
def build_log(table: EmbeddingTable) -> RowLog:
    """What notes the changes of a table from now on; whoever has a further kind of table registers it."""
    raise TypeError(f"table '{table.name}': nobody says which of its rows change")


class TableChanges:
    """The rows of a table that have changed, as far as this process has to say so."""

    def __init__(self, table: EmbeddingTable) -> None:
        self.table = table
        self._logs: list[tuple[TablePiece, RowLog]] = [
            (piece, build_log(piece.table)) for piece in table.pieces_here()
        ]

    def mark(self, keys: Array) -> None:
        """Let rows count as changed, or as gone if they are not there; those of others are passed over."""
        for piece, log in self._logs:
            inside = (keys >= piece.first_row) & (keys - piece.first_row < piece.table.spec.num_rows)
            log.mark(keys[inside] - piece.first_row)

    def take(self) -> list[Changed]:
        """What has changed, piece by piece; from now on it counts as known."""
        return [_placed(piece, log.take()) for piece, log in self._logs]


def _placed(piece: TablePiece, own: Changed) -> Changed:
    """A piece's changes under the numbers that the whole table has."""
    first = piece.first_row
    own = own._replace(first_column=piece.first_column)
    return own._replace(keys=own.keys + first, gone=own.gone + first) if first else own


class ChangeLog:
    """The rows of a local table that have changed since the last `take`."""

    def __init__(self, table: Table) -> None:
        self.table = table
        size = -(-table.height // _PIECE) * _PIECE
        self._region = Region(size, f"changes of table '{table.name}'", 4 << 20)
        table.numbers[CHANGED] = self._region.address
        self._marked: list[Array] = []  # keys that count as changed, whether they have rows or not
        if isinstance(table, LivingTable):
            table.log_gone()

    def mark(self, keys: Array) -> None:
        """Let rows count as changed, or as gone if they are not there."""
        self._marked.append(np.asarray(keys, np.int64))

    def take(self) -> Changed:
        """What has changed; from now on it counts as known."""
        table = self.table
        marked = np.unique(np.concatenate(self._marked)) if self._marked else np.empty(0, np.int64)
        self._marked = []
        if isinstance(table, LivingTable):
            return self._take_living(table, marked)
        rows, slots = self._take_rows(table)
        if not len(marked):
            return Changed(rows, table.read(slots), marked, None)
        every, where = table.touched_rows()
        at_ = np.minimum(np.searchsorted(every, marked), max(len(every) - 1, 0))
        known = np.zeros(len(marked), bool) if not len(every) else every[at_] == marked
        more = known & ~np.isin(marked, rows)
        rows = np.concatenate([rows, marked[more]])
        slots = np.concatenate([slots, where[at_[more]]])
        return Changed(rows, table.read(slots), marked[~known], None)

    def _take_rows(self, table: Table) -> tuple[Array, Array]:
        """Rows that have changed, and their slots."""
        if table.history is not None:
            self._collect(table.height)
            return table.touched_rows()
        if not table.compact:
            slots = self._collect(table.height)
            return slots, slots
        assert table.slots is not None
        table.slots.settle()
        count = table.touched
        rows, slots = np.empty(count, np.int64), np.empty(count, np.int64)
        found = np.zeros(1, np.int64)
        arguments = (table.slots.region.address, table.slots.size, self._region.address)
        launch(compiled(indexed_task), *arguments, rows, slots, found, tasks=1)
        self._collect(count)
        return rows[: found[0]], slots[: found[0]]

    def _take_living(self, table: LivingTable, marked: Array) -> Changed:
        high = int(table.line[at.HIGH])
        slots = self._collect(high)
        if table.history is not None:
            slots = np.union1d(slots, table.touched_rows()[1])
        gone = np.union1d(table.take_gone(), marked)
        rows = find_rows(table, gone)
        fallback = bool(table.living.fallback and len(slots) and slots[0] == 0)
        slots = slots[slots >= table.reserved]
        slots = slots[table.meta[slots, 0] >= 0]
        again = np.setdiff1d(rows[(rows >= 0) & np.isin(gone, marked)], slots)
        slots = np.concatenate([slots, again])
        keys = table.meta[slots, 0].copy()
        # After a resume the row of all others may differ from what was sent, too.
        fallback |= bool(table.living.fallback and len(marked))
        return Changed(keys, table.values(slots), gone[rows < 0], table.stand_ins() if fallback else None)

    def _collect(self, slots: int) -> Array:
        """The slots that are marked, ascending; their marks are taken away."""
        found, out = np.zeros(1, np.int64), np.empty(slots, np.int64)
        launch(compiled(collect_task), self._region.address, slots, out, found, tasks=1)
        return out[: found[0]].copy()


build_log.register(Table, ChangeLog)


def find_rows(table: LivingTable, keys: Array) -> Array:
    """The rows of keys, −1 for those that have none."""
    keys, rows = np.ascontiguousarray(keys, np.int64), np.empty(len(keys), np.int64)
    launch(compiled(find_task), address_of(table.line), keys, rows, len(keys), tasks=1)
    return rows


@njit(nogil=True)
def collect_task(a: int) -> None:
    """Marked slots, whose marks are cleared. Arguments: the marks, slots, result slots, result count."""
    marks, slots, out = field(a, FIRST), field(a, FIRST + 1), field(a, FIRST + 2)
    n = 0
    for piece in range(0, slots, _PIECE):
        if load_i64(marks + piece) == 0:
            continue
        for slot in range(piece, min(piece + _PIECE, slots)):
            if simd.load_u8(marks + slot) != 0:
                store_i64(out + 8 * n, slot)
                n += 1
        store_i64(marks + piece, 0)
    store_i64(field(a, FIRST + 3), n)


@njit(nogil=True)
def indexed_task(a: int) -> None:
    """Rows of marked slots. Arguments: the index, its entries, the marks, rows, slots, result count."""
    index, size, marks = field(a, FIRST), field(a, FIRST + 1), field(a, FIRST + 2)
    rows, slots = field(a, FIRST + 3), field(a, FIRST + 4)
    n = 0
    for j in range(size):
        entry = load_i64(index + 8 * j)
        if entry != 0 and simd.load_u8(marks + (entry >> 32)) != 0:
            store_i64(rows + 8 * n, (entry & 0xFFFFFFFF) - 1)
            store_i64(slots + 8 * n, entry >> 32)
            n += 1
    store_i64(field(a, FIRST + 5), n)


@njit(nogil=True)
def find_task(a: int) -> None:
    """Rows of keys. Arguments: the line, keys, rows, count."""
    line, keys, rows = field(a, FIRST), field(a, FIRST + 1), field(a, FIRST + 2)
    for i in range(field(a, FIRST + 3)):
        store_i64(rows + 8 * i, find(line, field(keys, i)))
