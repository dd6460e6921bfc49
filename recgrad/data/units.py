"""From the blocks that readers hand over to units of work.

    blocks   [ file 0: 0 … 4095 ][ file 0: 4096 … 5999 ][ file 1: 0 … ]     as they were read
    windows  [     shuffled at once     ][     shuffled at once     ]        whole batches each
    units    [  encoded  ][  encoded  ]  [  encoded  ][  encoded  ]          one or a few batches each
    batches  [   ][   ][   ][   ]        [   ][   ][   ][   ]

Without shuffling a window is just a unit. Batches that are cut by cost may lie in two windows, so a unit is
made of slices of windows. Rows are put into their order when a unit is first encoded, not when they are read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.arrow_columns import one_chunk, take_rows, without_dictionary
from recgrad.data.order import EpochPlan
from recgrad.data.readers.reader import BadValue, Block

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
        blocks: its rows as they were read.
        plan: what orders them.
    """

    def __init__(self, index: int, start: int, blocks: Sequence[Block], plan: EpochPlan) -> None:
        self.index = index
        self.start = start
        self.plan = plan
        self._blocks = tuple(blocks)
        self._rows: Rows | None = None
        self._lock = threading.Lock()

    @property
    def rows(self) -> Rows:
        """All rows."""
        with self._lock:
            if self._rows is None:
                self._rows = _deliver(self._blocks, self.plan.permutation(self.index))
                self._blocks = ()
            return self._rows


def _deliver(blocks: Sequence[Block], order: Ints | None) -> Rows:
    table = pa.concat_tables([block.table for block in blocks])
    sizes = [block.table.num_rows for block in blocks]
    files = np.concatenate([block.row_files() for block in blocks])
    numbers = np.concatenate([block.row_numbers() for block in blocks])
    offsets = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    bad = [
        replace(item, row=item.row + offset)
        for block, offset in zip(blocks, offsets, strict=False)
        for item in block.bad
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
class WindowSlice:
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
    parts: tuple[WindowSlice, ...]
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


class Assembler:
    """Collects blocks into windows and cuts these into units.

    Args:
        plan: the epoch.
        start_row: the first row to deliver; the first block begins at the start of its window.
        stop_row: where to end, the end of the epoch when not given; the last block ends where the
            window of the row before it does.
        done: row ranges beyond it that were delivered before and are left out.
        unit_batches: batches that are encoded at once.
        costs: column of costs and the most that a batch may cost, when batches are cut by cost.
    """

    def __init__(
        self,
        plan: EpochPlan,
        *,
        start_row: int = 0,
        stop_row: int | None = None,
        done: tuple[tuple[int, int], ...] = (),
        unit_batches: int = 1,
        costs: tuple[str, int] | None = None,
    ) -> None:
        self._plan = plan
        self._start_row = start_row
        self._stop_row = plan.num_rows if stop_row is None else stop_row
        self._done = done
        self._unit_batches = unit_batches
        self._costs = costs
        self._window = plan.window_of(start_row) if plan.num_windows else 0
        self._blocks: list[Block] = []
        self._gathered = 0
        self._units = 0
        self._uncut: list[WindowSlice] = []
        self._held: Unit | None = None
        self._spent = 0.0

    @property
    def waiting_rows(self) -> int:
        """Rows that are not in a unit yet."""
        return self._gathered + sum(part.stop - part.start for part in self._uncut)

    def push(self, block: Block) -> list[Unit]:
        """Take rows over; returns the units that are complete now."""
        units: list[Unit] = []
        at, total = 0, block.table.num_rows
        while at < total:
            start, stop = self._plan.window(self._window)
            step = min(total - at, stop - start - self._gathered)
            self._blocks.append(block.slice(at, at + step))
            self._gathered += step
            at += step
            if self._gathered == stop - start:
                window = Window(self._window, start, self._blocks, self._plan)
                self._blocks, self._gathered = [], 0
                self._window += 1
                units += self._cut_by_rows(window) if self._costs is None else self._cut_by_cost(window)
        return units

    def _unit(self, parts: Sequence[WindowSlice], bounds: Sequence[int]) -> Unit:
        unit = Unit(self._units, tuple(parts), tuple(bounds))
        self._units += 1
        return unit

    def _cut_by_rows(self, window: Window) -> Iterator[Unit]:
        """Groups of `unit_batches` batches, counted from the start of the window."""
        batch, stop = self._plan.window(window.index)
        bounds: list[int] = []
        number = 0
        while batch < stop:
            end = self._plan.batch_end(batch)
            outside = end <= self._start_row or batch >= self._stop_row
            left_out = outside or self._is_done(batch, end)
            if not left_out:
                bounds = [*(bounds or [batch]), end]
            number += 1
            if bounds and (left_out or end == stop or number % self._unit_batches == 0):
                yield self._unit([WindowSlice(window, bounds[0], bounds[-1])], bounds)
                bounds = []
            batch = end

    def _cut_by_cost(self, window: Window) -> Iterator[Unit]:
        """Batches of consecutive rows that together cost no more than the limit.

        One batch is held back until the next is known, so that a last one of one row can be
        joined to it.
        """
        assert self._costs is not None
        column, limit = self._costs
        start, stop = self._plan.window(window.index)
        start, stop = max(start, self._start_row), min(stop, self._stop_row)
        values = cost_values(one_chunk(WindowSlice(window, start, stop).table([column]).column(0)))
        costs = np.where(are_costs(values, limit), values, 0.0)
        total = np.concatenate([[0.0], np.cumsum(costs)])
        at = 0
        while at < len(costs):
            end = int(np.searchsorted(total, total[at] + limit - self._spent, side="right")) - 1
            if end > at:
                self._uncut.append(WindowSlice(window, start + at, start + end))
                self._spent += float(total[end] - total[at])
            if end < len(costs):
                yield from self._close_batch()
            at = max(at, end)
        if stop == self._stop_row:
            yield from self._close_batch()
            if self._held is not None:
                yield self._held
                self._held = None

    def _close_batch(self) -> Iterator[Unit]:
        parts, self._uncut, self._spent = self._uncut, [], 0.0
        if not parts:
            return
        ends = parts[-1].stop == self._stop_row
        if self._held is not None and ends and parts[-1].stop - parts[0].start == 1:
            held = self._held
            self._held = replace(held, parts=(*held.parts, *parts), bounds=(held.bounds[0], parts[-1].stop))
            return
        if self._held is not None:
            yield self._held
        self._held = self._unit(parts, [parts[0].start, parts[-1].stop])

    def _is_done(self, start: int, stop: int) -> bool:
        return any(first <= start and stop <= last for first, last in self._done)


# --- costs of rows, by which batches may be cut ---


def cost_values(column: pa.Array) -> Floats:
    """The costs of rows; a null is nan."""
    values: Floats = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values


def are_costs(values: Floats, limit: int) -> npt.NDArray[np.bool_]:
    """Which values a batch can hold: above 0 and at most the limit. Rows with others are bad."""
    return (values > 0) & (values <= limit)
