"""Batches of a stream, as long as rows come.

    flow ─▶ Run ─▶ Cut (a batch's rows, and where the stream stands after them) ─▶ Unit ─▶ Batch
    ╰────────── one thread reads and cuts ──────────╯        ╰── threads encode ──╯

A position is that of the last batch which was given out and trained on: what was read ahead of it lies
beyond, and is read again after a kill.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.bad_rows import BadRowTally
from recgrad.data.batch import Batch
from recgrad.data.batching import LoadedBatch, LoadedUnit, UnitEncoder
from recgrad.data.file_loader import Loader, without_negative_ids
from recgrad.data.loader_settings import LoaderSettings
from recgrad.data.order import EpochPlan
from recgrad.data.readers.reader import BLOCK_ROWS, Block
from recgrad.data.readers.streams.source import Flow, Run, Source, State
from recgrad.data.stream_position import (
    StreamPosition,
    join_stream_positions,
    position_of,
    resume_position,
)
from recgrad.data.units import Unit, Window, WindowSlice
from recgrad.openmp import run_on_any_core

__all__ = ["StreamLoader", "Waits"]

logger = logging.getLogger("recgrad.data")

_TICK = 0.05
_FOREVER = 1 << 62


@dataclass(frozen=True)
class Waits:
    """How long a loader waits for rows, in seconds.

    Attributes:
        idle: after so long without rows the stream counts as ended; 0 never.
        rank: after so long a rank of several gives a batch of no rows.
    """

    idle: float = 0.0
    rank: float = 1.0


@dataclass(frozen=True)
class _Cut:
    """The rows of one batch.

    Attributes:
        window: the rows.
        rows: how many.
        at: where the stream stands after them.
        event_time: of the latest message.
    """

    window: Window
    rows: int
    at: State
    event_time: float | None


@dataclass(frozen=True)
class _Item:
    """Cuts that are encoded at once."""

    cuts: tuple[_Cut, ...]
    result: Future[LoadedUnit]


class StreamLoader(Loader):
    """Reads a stream, cuts it into batches of `batch_size` rows and encodes them ahead of the consumer.

    `epoch` gives batches until the source ends, nothing has come for `waits.idle` seconds, or who waits
    asks to stop. What is left then of a batch is given out as a smaller one, unless it is dropped or has one
    row; such rows lie beyond the position and come first when the run is resumed.
    """

    def __init__(
        self, source: Source, encoder: UnitEncoder, settings: LoaderSettings, *, endless: bool, waits: Waits
    ) -> None:
        self._source = source
        self._encoder = encoder
        self.settings = settings
        self.endless = endless
        self._waits = waits
        self._flow: Flow | None = None
        self.asked_to_stop = lambda: False
        self.position = self._begin()

    @property
    def num_rows(self) -> int:
        """Not known beforehand: 0."""
        return 0

    @property
    def num_batches(self) -> int | None:
        """Not known beforehand."""
        return None

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """All columns of the stream."""
        return tuple(self._source.schema.names)

    @property
    def local_paths(self) -> tuple[str, ...]:
        """Nothing that one could warm."""
        return ()

    @property
    def timed(self) -> bool:
        """Messages have times."""
        return True

    @property
    def lag(self) -> float | None:
        """Messages of this rank's partitions that wait at the brokers."""
        return None if self._flow is None else self._flow.lag(self.position.at)

    def read_position(self, text: str) -> StreamPosition:
        """The position of this rank."""
        return position_of(text)

    def join_positions(self, texts: Sequence[str]) -> str:
        """The positions of all ranks as one text."""
        return join_stream_positions(texts)

    def position_from(self, text: str) -> Any:
        """Where this rank resumes; partitions and files are dealt to as many ranks as there are now."""
        return resume_position(text, self._source, self.settings.rank, self.settings.world_size)

    def empty_batch(self) -> Batch:
        """A batch of no rows."""
        return self._nothing.batch

    def _begin(self) -> StreamPosition:
        return StreamPosition(self._source.kind, self._source.name, self._source.start())

    def _loaded(self, epoch: int, position: Any) -> Iterator[LoadedBatch]:
        here: StreamPosition = position or self._begin()
        self.position = here
        tally = BadRowTally(self.settings.max_bad_row_ratio, here.rows, here.bad_rows)
        flow = self._source.open(here.at, self._encoder.columns)
        if self.settings.training:
            self._flow = flow
        reading = _Reading(flow, here, self._encoder, self.settings, self._waits)
        try:
            waited_since = time.monotonic()
            while True:
                item = reading.next(_TICK)
                if item is None:
                    if reading.ended:
                        break
                    if self.asked_to_stop():
                        return
                    late = time.monotonic() - waited_since > self._waits.rank
                    if self._encoder.keep_empty and self.settings.training and late:
                        waited_since = time.monotonic()
                        yield self._nothing
                    continue
                encoded = item.result.result()
                if encoded.skipped is not None:
                    tally.note(encoded.skipped)
                for cut, loaded in zip(item.cuts, encoded.batches, strict=True):
                    tally.add(cut.rows, loaded.bad_rows)
                    kept = bool(loaded.batch.size or self._encoder.keep_empty)
                    here = here.after(cut.at, rows=cut.rows, bad_rows=loaded.bad_rows, batches=1)
                    self.position = here
                    self.event_time = loaded.event_time if self._encoder.timestamp else cut.event_time
                    if kept:
                        yield loaded
                waited_since = time.monotonic()
            tally.finish()
        finally:
            reading.close()
            if self._flow is flow:
                self._flow = None

    @cached_property
    def _nothing(self) -> LoadedBatch:
        schema = self._source.schema
        table = pa.table({name: pa.array([], schema.field(name).type) for name in self._encoder.columns})
        window = Window(0, 0, (Block(table),), stream_plan(self.settings))
        loaded = self._encoder(Unit(0, (WindowSlice(window, 0, 0),), (0, 0))).batches[0]
        return without_negative_ids(loaded)


def stream_plan(settings: LoaderSettings) -> EpochPlan:
    """Rows in the order in which they come, a window for each batch."""
    size = settings.batch_size
    return EpochPlan(
        segments=(),
        num_rows=_FOREVER,
        num_batches=_FOREVER // size,
        batch_size=size,
        window_rows=size,
        shuffle=False,
        seed=settings.seed,
        epoch=0,
        rank=settings.rank,
    )


class _Cutter:
    """Cuts runs into batches, and knows where the stream stands after each."""

    def __init__(self, flow: Flow, begin: StreamPosition, settings: LoaderSettings) -> None:
        self._flow = flow
        self._settings = settings
        self._plan = stream_plan(settings)
        self._index, self._row = begin.batches, begin.rows
        self._state = begin.at  # at the start of the run that is being cut
        self._blocks: list[Block] = []
        self._gathered = 0
        self._times: list[npt.NDArray[np.float64]] = []

    def push(self, run: Run) -> Iterator[_Cut]:
        """The batches that are full now."""
        at, total = 0, run.block.table.num_rows
        size = self._settings.batch_size
        while at < total:
            step = min(total - at, size - self._gathered)
            self._blocks.append(run.block.slice(at, at + step))
            if run.event_times is not None:
                self._times.append(run.event_times[at : at + step])
            self._gathered += step
            at += step
            if self._gathered == size:
                yield self._cut(self._flow.after(self._state, run, at))
        self._state = self._flow.after(self._state, run, total)

    def rest(self) -> Iterator[_Cut]:
        """What is left at the end of the stream; one row, which BatchNorm cannot use, waits for others."""
        least = 2 if self._settings.training else 1
        if self._gathered >= least and not self._settings.drop_remainder:
            yield self._cut(self._state)

    def _cut(self, at: State) -> _Cut:
        window = Window(self._index, self._row, self._blocks, self._plan)
        times = np.concatenate([*self._times, [np.nan]])
        known = times[~np.isnan(times)]
        cut = _Cut(window, self._gathered, at, float(known.max()) if len(known) else None)
        self._index += 1
        self._row += self._gathered
        self._blocks, self._times, self._gathered = [], [], 0
        return cut


class _Reading:
    """The thread that reads and cuts, and those that encode."""

    def __init__(
        self,
        flow: Flow,
        begin: StreamPosition,
        encode: UnitEncoder,
        settings: LoaderSettings,
        waits: Waits,
    ) -> None:
        self._flow = flow
        self._encode = encode
        self._waits = waits
        self._cutter = _Cutter(flow, begin, settings)
        # Bad rows may leave a batch so small that its neighbour in the unit takes it, so units stay alone.
        self._unit_batches = 1 if settings.skip_bad else settings.unit_batches
        threads = max(1, settings.threads)
        ahead = threads + 1 + BLOCK_ROWS // (self._unit_batches * settings.batch_size)
        self._pool = ThreadPoolExecutor(threads, "recgrad-encode", initializer=run_on_any_core)
        self._items: queue.Queue[_Item | Exception | None] = queue.Queue(ahead)
        self._closed = threading.Event()
        self.ended = False
        self._units = 0
        self._thread = threading.Thread(target=self._work, name="recgrad-stream", daemon=True)
        self._thread.start()

    def next(self, timeout: float) -> _Item | None:
        """The next batches; None where there are none within `timeout`, or none any more (`ended`)."""
        if self.ended:
            return None
        try:
            item = self._items.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(item, Exception):
            raise item
        self.ended = item is None
        return item

    def close(self) -> None:
        """End the threads and wait for them."""
        self._closed.set()
        self._thread.join()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._flow.close()

    def _work(self) -> None:
        run_on_any_core()
        try:
            self._read()
        except Exception as error:
            self._put(error)

    def _read(self) -> None:
        waiting: list[_Cut] = []
        last = time.monotonic()
        while not self._closed.is_set():
            run = self._flow.poll(0.0 if waiting else _TICK)
            if run is None:
                self._submit(waiting)
                waiting = []
                idle = self._waits.idle and time.monotonic() - last > self._waits.idle
                if self._flow.ended or idle:
                    self._submit(list(self._cutter.rest()))
                    self._put(None)
                    return
                continue
            for cut in self._cutter.push(run):
                waiting.append(cut)
                if len(waiting) == self._unit_batches:
                    self._submit(waiting)
                    waiting = []
            last = time.monotonic()

    def _submit(self, cuts: Sequence[_Cut]) -> None:
        if not cuts:
            return
        parts = tuple(WindowSlice(cut.window, cut.window.start, cut.window.start + cut.rows) for cut in cuts)
        bounds = (parts[0].start, *(part.stop for part in parts))
        unit = Unit(self._units, parts, bounds)
        self._units += 1
        self._put(_Item(tuple(cuts), self._pool.submit(self._encode, unit)))

    def _put(self, item: _Item | Exception | None) -> None:
        while not self._closed.is_set():
            try:
                self._items.put(item, timeout=_TICK)
                return
            except queue.Full:
                continue
