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

from recgrad.data.order import Segment
from recgrad.data.readers.reader import Block
from recgrad.data.units import Assembler, Unit
from recgrad.openmp import run_on_any_core

R = TypeVar("R")


@dataclass
class _Reading:
    """A segment that is being read."""

    blocks: Iterator[Block]
    waiting: deque[Block] = field(default_factory=deque)
    busy: bool = False
    ended: bool = False
    error: Exception | None = None


class Pipeline(Generic[R]):
    """Reads segments, assembles units and encodes them, on `threads` threads.

    Args:
        segments: what to read, in order.
        read: the blocks of a segment.
        assembler: makes units of blocks.
        encode: makes the result of a unit.
        threads: 0 does the work in the consumer's own thread.
        row_budget: rows that may wait to be encoded; reading pauses above it.
        ahead: units that may be encoded before they are consumed.
        in_order: deliver units in their order; otherwise as they are ready.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        read: Callable[[Segment], Iterator[Block]],
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
        self._readings: deque[_Reading] = deque()
        self._max_readings = max(1, threads)
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
        reading = self._next_reading()
        if reading is None:
            return None
        reading.busy = True
        return partial(self._read_block, reading)

    def _next_reading(self) -> _Reading | None:
        """The oldest segment that nobody reads, if more rows may wait."""
        room = self._waiting_rows + self._assembler.waiting_rows < self._row_budget
        # The first reading holds what the next unit needs: when nothing else is to do, it goes on.
        starved = not self._units and not self._encoding and not self._results
        for i, reading in enumerate(self._readings):
            if not reading.busy and not reading.ended:
                return reading if room or (i == 0 and starved) else None
        if (
            self._segments
            and len(self._readings) < self._max_readings
            and (room or (starved and not self._readings))
        ):
            reading = _Reading(self._read(self._segments.popleft()))
            self._readings.append(reading)
            return reading
        return None

    def _read_block(self, reading: _Reading) -> None:
        block: Block | None = None
        error: Exception | None = None
        try:
            block = next(reading.blocks, None)
        except Exception as caught:
            error = caught
        with self._changed:
            reading.busy = False
            if block is not None:
                reading.waiting.append(block)
                self._waiting_rows += block.table.num_rows
            else:
                reading.ended = True
                reading.error = error
            self._collect()
            self._changed.notify_all()

    def _collect(self) -> None:
        """Hand over what the oldest readings have read; called with the lock held."""
        while self._readings and self._error is None:
            reading = self._readings[0]
            while reading.waiting:
                block = reading.waiting.popleft()
                self._waiting_rows -= block.table.num_rows
                try:
                    units = self._assembler.push(block)
                except Exception as error:
                    self._stop(error)
                    return
                self._units.extend(units)
                self._made += len(units)
                self._waiting_rows += sum(unit.num_rows for unit in units)
            if not reading.ended:
                return
            self._readings.popleft()
            if reading.error is not None:
                self._stop(reading.error)
                return
        if not self._readings and not self._segments:
            self._ended = True

    def _stop(self, error: Exception) -> None:
        """Nothing is read after an error; units made before it are still delivered."""
        self._error = error
        self._ended = True
        self._segments.clear()
        self._readings.clear()

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
