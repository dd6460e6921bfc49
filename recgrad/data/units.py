"""Rows on their way from readers to batches: pieces, windows and units of work.

A unit is one or a few batches that are encoded at once. Units are cut from windows; a window is
what is shuffled at once, and without shuffling just a unit.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.arrow_columns import one_chunk, take_rows, without_dictionary
from recgrad.data.order import EpochPlan
from recgrad.data.readers.reader import BadValue

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a file.

    Attributes:
        table: the columns.
        file: index of the file.
        first_row: row number, in the file, of the first row.
        bad: values that the reader could not parse.
    """

    table: pa.Table
    file: int
    first_row: int
    bad: tuple[BadValue, ...] = ()

    def slice(self, start: int, stop: int) -> Piece:
        """Rows `start` to `stop` of the piece."""
        if start == 0 and stop == self.table.num_rows:
            return self
        bad = tuple(
            BadValue(item.row - start, item.column, item.value, item.reason)
            for item in self.bad
            if start <= item.row < stop
        )
        return Piece(self.table.slice(start, stop - start), self.file, self.first_row + start, bad)


@dataclass(frozen=True)
class Rows:
    """Rows in the order of delivery.

    Attributes:
        table: the columns.
        files: the file of each row.
        numbers: the number of each row in its file.
        bad: values that the reader could not parse, sorted by row.
    """

    table: pa.Table
    files: npt.NDArray[np.int32]
    numbers: Ints
    bad: tuple[BadValue, ...]


class Window:
    """The rows of a window; they are put into the order of delivery when first asked for.

    Args:
        index: number of the window.
        start: number of its first row in the epoch.
        pieces: its rows as they were read.
        plan: what orders them.
    """

    def __init__(self, index: int, start: int, pieces: Sequence[Piece], plan: EpochPlan) -> None:
        self.index = index
        self.start = start
        self.plan = plan
        self._pieces = tuple(pieces)
        self._rows: Rows | None = None
        self._lock = threading.Lock()

    @property
    def rows(self) -> Rows:
        """All rows."""
        with self._lock:
            if self._rows is None:
                self._rows = _deliver(self._pieces, self.plan.permutation(self.index))
                self._pieces = ()
            return self._rows


def _deliver(pieces: Sequence[Piece], order: Ints | None) -> Rows:
    table = pa.concat_tables([piece.table for piece in pieces])
    sizes = [piece.table.num_rows for piece in pieces]
    files = np.repeat(np.array([piece.file for piece in pieces], np.int32), sizes)
    numbers = np.concatenate(
        [
            np.arange(piece.first_row, piece.first_row + size)
            for piece, size in zip(pieces, sizes, strict=True)
        ]
    )
    offsets = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    bad = [
        replace(item, row=item.row + offset)
        for piece, offset in zip(pieces, offsets, strict=False)
        for item in piece.bad
    ]
    if order is None:
        return Rows(table, files, numbers, tuple(bad))
    # A whole column is permuted at once: one column fits into the cache, all of them do not.
    columns = [take_rows(one_chunk(column), order) for column in table.columns]
    if bad:
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        bad = sorted((replace(item, row=int(place[item.row])) for item in bad), key=lambda item: item.row)
    return Rows(pa.table(columns, names=table.column_names), files[order], numbers[order], tuple(bad))


@dataclass(frozen=True)
class Part:
    """Rows `start` to `stop` of the epoch, all in one window."""

    window: Window
    start: int
    stop: int

    @property
    def taken(self) -> slice:
        """Rows of the window."""
        return slice(self.start - self.window.start, self.stop - self.window.start)

    def table(self, names: Sequence[str]) -> pa.Table:
        """Columns of these rows."""
        table = self.window.rows.table.select(list(names))
        return table.slice(self.taken.start, self.stop - self.start)

    def bad(self) -> list[BadValue]:
        """Values that the reader could not parse, by row of the part."""
        first, last = self.taken.start, self.taken.stop
        return [
            replace(item, row=item.row - first) for item in self.window.rows.bad if first <= item.row < last
        ]


@dataclass(frozen=True)
class Unit:
    """Batches that are encoded at once.

    Attributes:
        index: number of the unit since the loader started, from 0.
        parts: where its rows are; batches that are cut by cost may lie in two windows.
        bounds: where its batches begin, and where the last one ends, in rows of the epoch.
    """

    index: int
    parts: tuple[Part, ...]
    bounds: tuple[int, ...]

    @property
    def start(self) -> int:
        """The first row."""
        return self.bounds[0]

    @property
    def epoch(self) -> int:
        """The epoch."""
        return self.parts[0].window.plan.epoch

    @property
    def rank(self) -> int:
        """The rank for which the epoch was planned, which need not be this one."""
        return self.parts[0].window.plan.rank

    @property
    def num_rows(self) -> int:
        """Rows of all batches."""
        return self.bounds[-1] - self.bounds[0]

    def columns(self, names: Sequence[str]) -> dict[str, pa.Array]:
        """The rows of the unit, each column in one piece."""
        tables = [part.table(names) for part in self.parts]
        table = tables[0] if len(tables) == 1 else pa.concat_tables([_plain(item) for item in tables])
        return {name: one_chunk(column) for name, column in zip(names, table.columns, strict=True)}

    def files(self) -> npt.NDArray[np.int32]:
        """The file of each row."""
        return np.concatenate([part.window.rows.files[part.taken] for part in self.parts])

    def rows(self) -> Ints:
        """The number of each row in its file."""
        return np.concatenate([part.window.rows.numbers[part.taken] for part in self.parts])

    def mask(self, probability: float) -> npt.NDArray[np.bool_]:
        """True with `probability` for each row."""
        masks = []
        for part in self.parts:
            window = part.window
            mask = window.plan.mask(window.index, probability)
            masks.append(mask[part.start - window.start : part.stop - window.start])
        return np.concatenate(masks)

    def bad(self) -> list[BadValue]:
        """Values that the reader could not parse, by row of the unit."""
        found: list[BadValue] = []
        for part in self.parts:
            offset = part.start - self.start
            found += [replace(item, row=item.row + offset) for item in part.bad()]
        return found


def _plain(table: pa.Table) -> pa.Table:
    """The table with texts instead of dictionaries."""
    return pa.table([without_dictionary(column) for column in table.columns], names=table.column_names)
