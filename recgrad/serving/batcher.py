"""Scores concurrent requests together.

Whatever has come when the model is free is one batch, so nothing waits for a full one. Only while
other requests are arriving, and the batch is small, does it wait for them, for a bounded time. A
client that is alone is answered as soon as its request is read. Batches of a few milliseconds are
scored on the event loop's own thread, one after another with a look at the network in between: to
hand them to another thread and back costs more than others lose who wait meanwhile. Requests that
take longer have a thread of their own.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from recgrad.serving.metrics import Metrics
from recgrad.serving.settings import ServerSettings

logger = logging.getLogger("recgrad.serving")

A = TypeVar("A")
W = TypeVar("W", bound="Waiting[Any]")

INLINE_S = 0.01
"""The longest batch, as far as one can tell, that is scored on the event loop's thread."""
CALL_ROWS = 24
"""A call of the model costs about so many rows more than it has."""


@dataclass(eq=False)
class Waiting(Generic[A]):
    """A request that waits for its answer.

    Attributes:
        future: takes the answer, on the event loop.
        size: bytes that it holds.
        deadline: when nobody waits for the answer any more, by time.monotonic.
        rows: about how many it has.
    """

    future: asyncio.Future[A]
    size: int
    deadline: float
    rows: int = field(default=0, kw_only=True)


class Batcher(Generic[W, A]):
    """Requests that wait, with bounds; all but `_run` and `_answers` is called on the event loop.

    Args:
        answer: gives the answers of some requests; it must not raise. Runs on either thread.
        late: the answer of a request whose deadline has passed.
        settings: the bounds.
        metrics: takes sizes and times.
        loop: where futures are set.
        row_s: about what a row takes, in a batch of many.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[W]], Sequence[A]],
        late: A,
        *,
        settings: ServerSettings,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        row_s: float = 0.0,
    ) -> None:
        self._answer = answer
        self._late = late
        self._settings = settings
        self._metrics = metrics
        self._loop = loop
        self._waiting: set[W] = set()
        self._fresh: list[W] = []
        self._fresh_since = 0.0
        self._flushing = False
        self._queue: queue.SimpleQueue[list[W] | None] = queue.SimpleQueue()
        self._queued = 0  # batches that the thread has, or is about to have
        self._row_s = row_s
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="scoring", daemon=True)
        self.held_bytes = 0
        self.arriving = 0
        """Requests whose bodies are being read; they will be submitted soon."""
        self.clients = 1
        """Connections that are open."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after what waits."""
        self._queue.put(None)
        self._thread.join(timeout=self._settings.timeout_s)

    @property
    def alive(self) -> bool:
        """Whether the thread runs and no batch has taken longer than requests may wait."""
        busy = self._busy_since
        stuck = busy is not None and time.monotonic() - busy > 2 * self._settings.timeout_s
        return self._thread.is_alive() and not stuck

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return len(self._waiting)

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes more may be held."""
        return self.held_bytes + size <= self._settings.max_queue_bytes

    def reserve(self, size: int) -> bool:
        """Take room for `size` bytes; False when there is none."""
        if not self.has_room(size):
            return False
        self.held_bytes += size
        return True

    def release(self, size: int) -> None:
        """Give room back."""
        self.held_bytes -= size

    def submit(self, waiting: W) -> None:
        """Take a request up."""
        self._waiting.add(waiting)
        if not self._fresh:
            self._fresh_since = time.monotonic()
        self._fresh.append(waiting)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)  # after what else has come from the network by now

    def answer_alone(self, waiting: W) -> A | None:
        """The answer at once, without a turn of the event loop; None if it must be submitted.

        It must be where there are other clients, whose requests may come together with this one, or where
        it takes long.
        """
        return self._answers([waiting])[0] if self.is_free_for(waiting.rows) else None

    def is_free_for(self, rows: int) -> bool:
        """Whether a request is alone, so that it may be answered at once if it has so many rows."""
        alone = self.clients <= 1 and not self._fresh and not self._queued
        return alone and self._seconds(rows) <= INLINE_S

    def forget_late(self) -> None:
        """Answer requests whose deadline has passed; called now and then."""
        now = time.monotonic()
        for waiting in [waiting for waiting in self._waiting if waiting.deadline < now]:
            self._set(waiting, self._late)
        self._metrics.set("recgrad_queue_requests", len(self._waiting))
        self._metrics.set("recgrad_queue_bytes", self.held_bytes)

    def _seconds(self, rows: int) -> float:
        """About what a batch takes."""
        return self._row_s * (rows + CALL_ROWS)

    def _flush(self) -> None:
        """Score what has come, here or on the thread."""
        max_wait_s = self._settings.max_wait_ms / 1000
        if self.arriving > 0 and time.monotonic() < self._fresh_since + max_wait_s:
            rows = sum(waiting.rows for waiting in self._fresh)
            if self._seconds(rows) < max_wait_s and rows < self._settings.batch_rows:
                self._loop.call_soon(self._flush)
                return
        if self._queued or self._seconds(self._fresh[0].rows) > INLINE_S:
            batch, self._fresh = self._fresh, []
            self._flushing = False
            self._queued += 1
            self._queue.put(batch)
            return
        most = self._settings.batch_rows
        if self._row_s:
            most = min(most, int(INLINE_S / self._row_s))
        part = next(parts(self._fresh, most))
        self._fresh = self._fresh[len(part) :]
        live = [waiting for waiting in part if not waiting.future.done()]
        self._deliver(live, self._answers(live) if live else [])
        self._flushing = bool(self._fresh)
        if self._flushing:
            self._loop.call_soon(self._flush)

    def _deliver(self, batch: Sequence[W], answers: Sequence[A]) -> None:
        for waiting, answer in zip(batch, answers):
            self._set(waiting, answer)

    def _set(self, waiting: W, answer: A) -> None:
        self._waiting.discard(waiting)
        if not waiting.future.done():
            waiting.future.set_result(answer)

    def _run(self) -> None:
        """What the thread does."""
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Answer what is in the queue, when there is something; False if it was the last.

        A function of its own, so that nothing of these requests is kept until the next ones come.
        """
        got = [self._queue.get()]
        while not self._queue.empty():
            got.append(self._queue.get())
        batches = [batch for batch in got if batch is not None]
        last = len(batches) < len(got)
        now = time.monotonic()
        live = [waiting for batch in batches for waiting in batch if waiting.deadline >= now]
        for part in parts(live, self._settings.batch_rows):
            self._busy_since = time.monotonic()
            answers = self._answers(part)
            self._busy_since = None
            self._loop.call_soon_threadsafe(self._deliver, part, answers)
        if not last:
            self._loop.call_soon_threadsafe(self._leave, len(batches))
        return not last

    def _leave(self, count: int) -> None:
        self._queued -= count

    def _answers(self, batch: Sequence[W]) -> Sequence[A]:
        started = time.monotonic()
        try:
            answers = self._answer(batch)
        except Exception:  # whatever happens, the server must live on
            logger.exception("a batch could not be scored")
            answers = [self._late] * len(batch)
        seconds = time.monotonic() - started
        self.scored(seconds, len(batch), sum(waiting.rows for waiting in batch))
        return answers

    def scored(self, seconds: float, requests: int, rows: int) -> None:
        """Learn from a batch what rows take."""
        took = seconds / (rows + CALL_ROWS)
        self._row_s += (0.5 if took > self._row_s else 0.05) * (took - self._row_s)
        self._metrics.scored(seconds, requests, rows)


def parts(batch: Sequence[W], rows: int) -> Iterator[list[W]]:
    """The batch in parts of at most so many rows, unless a single request has more."""
    part: list[W] = []
    total = 0
    for waiting in batch:
        if part and total + waiting.rows > rows:
            yield part
            part, total = [], 0
        part.append(waiting)
        total += waiting.rows
    if part:
        yield part
