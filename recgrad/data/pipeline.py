"""Threads that read and encode ahead of the consumer.

Two kinds of jobs run on the same threads: reading the next block of a segment, and encoding a
unit. A free thread takes the oldest unit that may be encoded, else the oldest segment that may
be read, so results do not depend on the number of threads, and one thread is enough. What
waits between the stages is bounded, in rows before encoding and in units after it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from recgrad.data.assembly import Assembler
from recgrad.data.order import Segment
from recgrad.data.units import Piece, Unit
from recgrad.openmp import run_on_any_core

R = TypeVar("R")


@dataclass
class _Lane:
    """A segment that is being read."""

    pieces: Iterator[Piece]
    waiting: deque[Piece] = field(default_factory=deque)
    busy: bool = False
    ended: bool = False
    error: Exception | None = None


class Pipeline(Generic[R]):
    """Reads segments, assembles units and encodes them, on `threads` threads.

    Args:
        segments: what to read, in order.
        read: the pieces of a segment.
        assembler: makes units of pieces.
        encode: makes the result of a unit.
        threads: 0 does the work in the consumer's own thread.
        row_budget: rows that may wait to be encoded; reading pauses above it.
        ahead: units that may be encoded before they are consumed.
        in_order: deliver units in their order; otherwise as they are ready.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        read: Callable[[Segment], Iterator[Piece]],
        assembler: Assembler,
        encode: Callable[[Unit], R],
        *,
        threads: int,
        row_budget: int,
        ahead: int,
        in_order: bool = True,
    ) -> None:
        self._segments = deque(segments)
        self._read = read
        self._assembler = assembler
        self._encode = encode
        self._row_budget = row_budget
        self._ahead = max(1, ahead)
        self._in_order = in_order
        self._lanes: deque[_Lane] = deque()
        self._max_lanes = max(1, threads)
        self._units: deque[Unit] = deque()
        self._waiting_rows = 0
        self._encoding = 0
        self._results: dict[int, tuple[Unit, R | None, Exception | None]] = {}
        self._made = 0
        self._taken = 0
        self._error: Exception | None = None
        self._ended = not self._segments
        self._closed = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"recgrad-loader-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def results(self) -> Iterator[tuple[Unit, R]]:
        """Units with their results; an error of reading or encoding is raised at its place."""
        while True:
            item = self._next()
            if item is None:
                return
            unit, result, error = item
            if error is not None:
                raise error
            yield unit, result  # type: ignore[misc]

    def close(self) -> None:
        """End the threads and wait for them."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    # The consumer's side.

    def _next(self) -> tuple[Unit, R | None, Exception | None] | None:
        with self._changed:
            while True:
                at = self._taken if self._in_order else min(self._results, default=-1)
                if at in self._results:
                    item = self._results.pop(at)
                    self._taken += 1
                    self._changed.notify_all()
                    return item
                if self._ended and self._taken == self._made:
                    if self._error is not None:
                        raise self._error
                    return None
                if self._threads:
                    self._changed.wait()
                else:
                    job = self._pick()
                    assert job is not None, "nothing to do and nothing to deliver"
                    self._changed.release()
                    try:
                        job()
                    finally:
                        self._changed.acquire()

    # The threads' side.

    def _work(self) -> None:
        run_on_any_core()
        while True:
            with self._changed:
                job = None
                while not self._closed and (job := self._pick()) is None:
                    self._changed.wait()
                if self._closed or job is None:
                    return
            job()

    def _pick(self) -> Callable[[], None] | None:
        """The next job; called with the lock held."""
        if self._units and self._encoding + len(self._results) < self._ahead:
            unit = self._units.popleft()
            self._waiting_rows -= unit.num_rows
            self._encoding += 1
            return partial(self._encode_unit, unit)
        lane = self._free_lane()
        if lane is None:
            return None
        lane.busy = True
        return partial(self._read_piece, lane)

    def _free_lane(self) -> _Lane | None:
        """The oldest segment that nobody reads, if more rows may wait."""
        room = self._waiting_rows + self._assembler.waiting_rows < self._row_budget
        # The first lane holds what the next unit needs: when nothing else is to do, it goes on.
        starved = not self._units and not self._encoding and not self._results
        for i, lane in enumerate(self._lanes):
            if not lane.busy and not lane.ended:
                return lane if room or (i == 0 and starved) else None
        if self._segments and len(self._lanes) < self._max_lanes and (room or (starved and not self._lanes)):
            lane = _Lane(self._read(self._segments.popleft()))
            self._lanes.append(lane)
            return lane
        return None

    def _read_piece(self, lane: _Lane) -> None:
        piece: Piece | None = None
        error: Exception | None = None
        try:
            piece = next(lane.pieces, None)
        except Exception as caught:
            error = caught
        with self._changed:
            lane.busy = False
            if piece is not None:
                lane.waiting.append(piece)
                self._waiting_rows += piece.table.num_rows
            else:
                lane.ended = True
                lane.error = error
            self._collect()
            self._changed.notify_all()

    def _collect(self) -> None:
        """Hand over what the oldest lanes have read; called with the lock held."""
        while self._lanes and self._error is None:
            lane = self._lanes[0]
            while lane.waiting:
                piece = lane.waiting.popleft()
                self._waiting_rows -= piece.table.num_rows
                try:
                    units = self._assembler.push(piece)
                except Exception as error:
                    self._stop(error)
                    return
                self._units.extend(units)
                self._made += len(units)
                self._waiting_rows += sum(unit.num_rows for unit in units)
            if not lane.ended:
                return
            self._lanes.popleft()
            if lane.error is not None:
                self._stop(lane.error)
                return
        if not self._lanes and not self._segments:
            self._ended = True

    def _stop(self, error: Exception) -> None:
        """Nothing is read after an error; units made before it are still delivered."""
        self._error = error
        self._ended = True
        self._segments.clear()
        self._lanes.clear()

    def _encode_unit(self, unit: Unit) -> None:
        result: R | None = None
        error: Exception | None = None
        try:
            result = self._encode(unit)
        except Exception as caught:
            error = caught
        with self._changed:
            self._encoding -= 1
            self._results[unit.index] = (unit, result, error)
            self._changed.notify_all()
