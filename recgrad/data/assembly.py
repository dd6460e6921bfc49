"""Putting the rows that readers deliver together into units of work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from recgrad.data.arrow_columns import one_chunk
from recgrad.data.costs import are_costs, cost_values
from recgrad.data.order import EpochPlan
from recgrad.data.units import Part, Piece, Unit, Window


class Assembler:
    """Collects pieces into windows and cuts these into units.

    Args:
        plan: the epoch.
        start_row: the first row to deliver; the first piece begins at the start of its window.
        stop_row: where to end, the end of the epoch when not given; the last piece ends where the
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
        self._pieces: list[Piece] = []
        self._gathered = 0
        self._units = 0
        self._uncut: list[Part] = []
        self._held: Unit | None = None
        self._spent = 0.0

    @property
    def waiting_rows(self) -> int:
        """Rows that are not in a unit yet."""
        return self._gathered + sum(part.stop - part.start for part in self._uncut)

    def push(self, piece: Piece) -> list[Unit]:
        """Take rows over; returns the units that are complete now."""
        units: list[Unit] = []
        at, total = 0, piece.table.num_rows
        while at < total:
            start, stop = self._plan.window(self._window)
            step = min(total - at, stop - start - self._gathered)
            self._pieces.append(piece.slice(at, at + step))
            self._gathered += step
            at += step
            if self._gathered == stop - start:
                window = Window(self._window, start, self._pieces, self._plan)
                self._pieces, self._gathered = [], 0
                self._window += 1
                units += self._cut_by_rows(window) if self._costs is None else self._cut_by_cost(window)
        return units

    def _unit(self, parts: Sequence[Part], bounds: Sequence[int]) -> Unit:
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
                yield self._unit([Part(window, bounds[0], bounds[-1])], bounds)
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
        values = cost_values(one_chunk(Part(window, start, stop).table([column]).column(0)))
        costs = np.where(are_costs(values, limit), values, 0.0)
        total = np.concatenate([[0.0], np.cumsum(costs)])
        at = 0
        while at < len(costs):
            end = int(np.searchsorted(total, total[at] + limit - self._spent, side="right")) - 1
            if end > at:
                self._uncut.append(Part(window, start + at, start + end))
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
