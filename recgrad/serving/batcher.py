"""Scores concurrent requests together, on a thread of its own.

Whatever waits when the thread is free is one batch, so nothing waits for a full one. Only while
other requests are arriving does a batch wait for them, for a bounded time.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from recgrad.serving.metrics import Metrics
from recgrad.serving.settings import ServerSettings

logger = logging.getLogger("recgrad.serving")

A = TypeVar("A")
W = TypeVar("W", bound="Waiting[Any]")


@dataclass(eq=False)
class Waiting(Generic[A]):
    """A request that waits for its answer.

    Attributes:
        future: takes the answer, on the event loop.
        size: bytes that it holds.
        deadline: when nobody waits for the answer any more, by time.monotonic.
    """

    future: asyncio.Future[A]
    size: int
    deadline: float
    rows: int = field(default=0, kw_only=True)


class Batcher(Generic[W, A]):
    """A queue with a bound, and the thread that empties it.

    Args:
        answer: gives the answers of some requests; it must not raise. Runs on the thread.
        prepare: reads one request before it is put into a batch, and returns its number of rows; may raise
            nothing. Runs on the thread.
        late: the answer of a request whose deadline has passed.
        settings: the bounds.
        metrics: takes sizes and times.
        loop: where futures are set.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[W]], Sequence[A]],
        prepare: Callable[[W], int],
        late: A,
        *,
        settings: ServerSettings,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._answer = answer
        self._prepare = prepare
        self._late = late
        self._settings = settings
        self._metrics = metrics
        self._loop = loop
        self._queue: queue.SimpleQueue[W | None] = queue.SimpleQueue()
        self._waiting: set[W] = set()
        self.held_bytes = 0
        self.arriving = 0
        """Requests whose bodies are being read; they will be submitted soon."""
        self.busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="scoring", daemon=True)

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
        busy = self.busy_since
        stuck = busy is not None and time.monotonic() - busy > 2 * self._settings.timeout_s
        return self._thread.is_alive() and not stuck

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return len(self._waiting)

    def reserve(self, size: int) -> bool:
        """Take room for `size` bytes; False when there is none."""
        if self.held_bytes + size > self._settings.max_queue_bytes:
            return False
        self.held_bytes += size
        return True

    def release(self, size: int) -> None:
        """Give room back."""
        self.held_bytes -= size

    def submit(self, waiting: W) -> None:
        """Queue a request; on the event loop."""
        self._waiting.add(waiting)
        self._queue.put(waiting)

    def forget_late(self) -> None:
        """Answer requests whose deadline has passed; called now and then, on the event loop."""
        now = time.monotonic()
        for waiting in [waiting for waiting in self._waiting if waiting.deadline < now]:
            self._set(waiting, self._late)
        self._metrics.set("recgrad_queue_requests", len(self._waiting))
        self._metrics.set("recgrad_queue_bytes", self.held_bytes)

    def _set(self, waiting: W, answer: A) -> None:
        self._waiting.discard(waiting)
        if not waiting.future.done():
            waiting.future.set_result(answer)

    def _deliver(self, batch: Sequence[W], answers: Sequence[A]) -> None:
        for waiting, answer in zip(batch, answers):
            self._set(waiting, answer)

    def _run(self) -> None:
        while True:
            first = self._queue.get()
            if first is None:
                return
            batch, last = self._collect(first)
            if batch:
                self._score(batch)
            if last:
                return

    def _collect(self, first: W) -> tuple[list[W], bool]:
        """What waits, up to the rows of a batch; and whether it is the last."""
        batch: list[W] = []
        rows = 0
        until = time.monotonic() + self._settings.max_wait_ms / 1000
        following: W | None = first
        while True:
            if following is None:
                return batch, True
            if following.deadline >= time.monotonic():
                following.rows = self._prepare(following)
                rows += following.rows
                batch.append(following)
            if rows >= self._settings.batch_rows:
                return batch, False
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                left = until - time.monotonic()
                if self.arriving <= 0 or left <= 0:
                    return batch, False
                try:
                    following = self._queue.get(timeout=left)
                except queue.Empty:
                    return batch, False

    def _score(self, batch: list[W]) -> None:
        started = time.monotonic()
        self.busy_since = started
        try:
            answers = self._answer(batch)
        except BaseException:  # the thread must live on, whatever happens
            logger.exception("a batch could not be scored")
            answers = [self._late] * len(batch)
        self.busy_since = None
        metrics = self._metrics
        metrics.observe("recgrad_scoring_seconds", time.monotonic() - started)
        metrics.observe("recgrad_batch_requests", len(batch))
        metrics.observe("recgrad_batch_rows", sum(waiting.rows for waiting in batch))
        self._loop.call_soon_threadsafe(self._deliver, batch, answers)
