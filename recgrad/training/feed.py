"""The batches of an epoch, with their ids; of several ranks, the ids of the next batch are sent ahead.

rank 0  forward ─▶ losses ─┬─ share ─▶ backward, update ─▶ forward of the next batch
        read, prepare next ┘    └─ send its ids ═══════════▶ take them
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

from recgrad.data.batch import Batch
from recgrad.data.loader import Loader, Position
from recgrad.models.base import Model
from recgrad.models.batch_ids import PreparedBatch
from recgrad.training.processes import Processes
from recgrad.training.signals import StopRequest
from recgrad.training.synchronize import Shared, share_losses

NO_TIME = -1.0


@dataclass(frozen=True)
class StreamProgress:
    """How far the ranks are in a stream.

    Attributes:
        times: of the latest event of each rank, in seconds since 1970; -1 where it has none yet.
        lag: messages that wait at the brokers for any rank; None where that is not known.
    """

    times: tuple[float, ...] = ()
    lag: float | None = None

    def reached(self, quorum: float) -> float:
        """The latest time that at least a share `quorum` of the ranks has reached; -1 where there is none."""
        if not self.times:
            return NO_TIME
        ranks = len(self.times)
        needed = max(math.ceil(quorum * ranks - 1e-9), 1)
        return sorted(self.times)[ranks - needed]


class Fed(NamedTuple):
    """A batch to train on.

    Attributes:
        batch: its rows.
        ids: of the batch, on their way already; None where the model is to prepare them.
        position: of the loader after it.
    """

    batch: Batch
    ids: PreparedBatch | None
    position: str


@dataclass
class _Drawn:
    """What the loader gave: a batch, None at its end, or an error; and the position after it."""

    batch: Batch | None
    position: str
    error: Exception | None = None
    ids: PreparedBatch | None = None
    sent: bool = False
    event_time: float | None = None


class Feed:
    """A rank's batches with the positions after them, and batches of no rows while other ranks have some.

    Where the engine sends ahead, the next batch is read in `share`, and its ids travel to other ranks while
    this batch's backward pass computes. A batch that was read ahead counts as consumed only when it is taken,
    and what went wrong in reading it is raised then.

    Args:
        loader: of this rank.
        epoch, position: where to begin.
        model: prepares the ids.
        processes: all ranks.
        stop: signals are agreed on where ranks ask each other for batches.
        ask: whether ranks may differ in the number of batches; else none is asked.
        reading: is entered whenever a batch is waited for.
        waiting: is called on all ranks, each time that none of them has had rows of a stream.
    """

    def __init__(
        self,
        loader: Loader,
        epoch: int,
        position: Position | None,
        *,
        model: Model,
        processes: Processes,
        stop: StopRequest,
        ask: bool,
        reading: Callable[[], AbstractContextManager[None]] = nullcontext,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self._loader = loader
        self._batches: Iterator[Batch] = loader.epoch(epoch, position)
        self._model = model
        # Whether a rank of a stream has rows next is not known before they are needed.
        self._sends_ahead = model.engine is not None and model.engine.sends_ahead and not loader.endless
        self._processes = processes
        self._stop = stop
        self._ask = ask and processes.distributed
        self._reading = reading
        self._waiting = waiting
        self._ahead: _Drawn | None = None
        self._having: float | None = None  # ranks that have the batch ahead, once they have agreed
        self._time = NO_TIME
        self.progress = StreamProgress()

    def __iter__(self) -> Iterator[Fed]:
        """All batches to the end of the epoch on all ranks."""
        while (fed := self.take()) is not None:
            yield fed

    def take(self) -> Fed | None:
        """The next batch; None at the end of the epoch on all ranks."""
        with self._reading():
            drawn, having = self._ahead or self._draw(), self._having
            self._ahead, self._having = None, None
            if drawn.error is not None:
                raise drawn.error
            batch = drawn.batch
            if self._ask:
                if self._loader.endless:
                    drawn, having = self._with_rows(drawn)
                    batch = drawn.batch
                elif having is None:
                    having, *signals = self._processes.sum([float(batch is not None), *self._stop.flags()])
                    self._stop.agree(signals)
                batch = self._or_empty(batch) if having else None
            if drawn.event_time is not None:
                self._time = max(self._time, drawn.event_time)
            return None if batch is None else Fed(batch, drawn.ids, drawn.position)

    def _with_rows(self, drawn: _Drawn) -> tuple[_Drawn, float]:
        """Of a stream, wait until some rank has rows; 0 ranks have them where all have ended."""
        while True:
            rows = drawn.batch is not None and drawn.batch.size > 0
            flags = [float(rows), float(drawn.batch is not None), *self._stop.flags()]
            having, alive, *signals = self._processes.sum(flags)
            self._stop.agree(signals)
            if having or not alive or self._stop.signal is not None:
                return drawn, having
            self._waiting()
            drawn = self._draw()

    def share(self, rows: int, losses: Mapping[str, float], *, last: bool) -> Shared:
        """What all ranks have of this micro-batch; the ids of the next one are sent, if all ranks have one.

        Args:
            rows: of this rank's micro-batch.
            losses: its loss terms.
            last: no further batch will be taken.
        """
        if self._sends_ahead and not last:
            self._look_ahead()
        flags = self._flags()
        times = self._times() if self._loader.timed else []
        shared = share_losses(self._processes, self._stop, rows, losses, (*flags, *times))
        if times:
            *seen, lag = shared.flags[len(flags) :]
            self.progress = StreamProgress(tuple(seen), None if lag < 0 else lag)
        if self._agree(shared) and not shared.broken and self._stop.signal is None:
            self._send()
        return shared

    def _look_ahead(self) -> None:
        """Read and prepare the next batch; an error in it is raised when it is taken."""
        try:
            with self._reading():
                self._ahead = drawn = self._draw()
            if drawn.batch is not None:
                drawn.ids = self._model.prepare(drawn.batch)
        except Exception as error:
            self._ahead = _Drawn(None, "", error)

    def _flags(self) -> tuple[float, ...]:
        """Whether this rank has a batch ahead, or an error in its place; and whether it has an error."""
        if not self._sends_ahead:
            return ()
        drawn = self._ahead or _Drawn(None, "")
        return float(drawn.batch is not None or drawn.error is not None), float(drawn.error is not None)

    def _times(self) -> list[float]:
        """This rank's event time at its place among all ranks', and its lag; sums have those of all."""
        times = [0.0] * self._processes.world_size
        times[self._processes.rank] = self._time
        lag = self._loader.lag
        return [*times, -math.inf if lag is None else lag]

    def _agree(self, shared: Shared) -> bool:
        """Whether a batch was read ahead on all ranks, so that its ids can be sent."""
        if self._ahead is None:
            return False
        self._having, failed = shared.flags[:2]
        everyone = self._having == self._processes.world_size
        return not failed and (everyone or (self._ask and self._having > 0))

    def _send(self) -> None:
        """Send the ids of the batch ahead; of one of no rows where this rank has none."""
        drawn = self._ahead
        assert drawn is not None
        if drawn.batch is None:
            drawn.batch = self._or_empty(None)
            drawn.ids = self._model.prepare(drawn.batch)
        assert drawn.ids is not None
        drawn.ids.send()
        drawn.sent = True

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the threads that read; ids that were sent and are not needed are awaited first.

        Otherwise a rank could leave while others still receive. After an error there may be no others.
        """
        drawn, self._ahead = self._ahead, None
        if error is None and drawn is not None and drawn.sent and drawn.ids is not None:
            drawn.ids.arrive()
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def _draw(self) -> _Drawn:
        batch = next(self._batches, None)
        return _Drawn(batch, self._loader.position.to_json(), event_time=self._loader.event_time)

    def _or_empty(self, batch: Batch | None) -> Batch:
        return self._loader.empty_batch() if batch is None else batch
