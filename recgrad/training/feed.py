"""The batches of an epoch, one of which may be read ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from recgrad.data.batch import Batch
from recgrad.data.loader import Loader, Position
from recgrad.training.processes import Processes
from recgrad.training.signals import StopRequest


@dataclass
class _Drawn:
    """What the loader gave: a batch, None at its end, or an error; and the position after it."""

    batch: Batch | None
    position: str
    error: Exception | None = None
    prepared: Any = None


class Feed:
    """A rank's batches with the positions after them, and batches of no rows while other ranks have some.

    A batch that was read ahead counts as consumed only when it is taken, and what went wrong in
    reading it is raised then. All ranks look ahead at the same places, and learn of each other by `flags`
    and `agree` whether all of them were able to.

    Args:
        loader: of this rank.
        epoch, position: where to begin.
        processes: all ranks.
        stop: signals are agreed on where ranks ask each other for batches.
        ask: whether ranks may differ in the number of batches; else none is asked.
    """

    def __init__(
        self,
        loader: Loader,
        epoch: int,
        position: Position | None,
        *,
        processes: Processes,
        stop: StopRequest,
        ask: bool,
    ) -> None:
        self._loader = loader
        self._batches: Iterator[Batch] = loader.epoch(epoch, position)
        self._processes = processes
        self._stop = stop
        self._ask = ask and processes.distributed
        self._ahead: _Drawn | None = None
        self._having: float | None = None  # ranks that have the batch ahead, once they have agreed
        self.ready = False
        """Whether a batch was read ahead on all ranks, so that its ids can be sent."""

    def take(self) -> tuple[Batch, str] | None:
        """The next batch and the position after it; None at the end of the epoch on all ranks."""
        drawn, having = self._ahead or self._draw(), self._having
        self._ahead, self._having, self.ready = None, None, False
        if drawn.error is not None:
            raise drawn.error
        batch = drawn.batch
        if self._ask:
            if having is None:
                having, *signals = self._processes.sum([float(batch is not None), *self._stop.flags()])
                self._stop.agree(signals)
            batch = self._or_empty(batch) if having else None
        return None if batch is None else (batch, drawn.position)

    def look_ahead(self) -> None:
        """Read the next batch."""
        try:
            self._ahead = self._draw()
        except Exception as error:  # of the batch after this one: it is raised when that is taken
            self._ahead = _Drawn(None, "", error)

    def prepare(self, prepare: Callable[[Batch], Any]) -> None:
        """Have the batch ahead prepared; an error of that is one of the batch."""
        drawn = self._ahead
        if drawn is not None and drawn.batch is not None:
            try:
                drawn.prepared = prepare(drawn.batch)
            except Exception as error:  # raised when the batch is taken
                drawn.error = error

    def prepared(self, prepare: Callable[[Batch], Any]) -> Any:
        """What `prepare` gave for the batch ahead; of one of no rows where this rank has none."""
        assert self._ahead is not None
        if self._ahead.batch is None:
            self._ahead.batch = self._or_empty(None)
            self._ahead.prepared = prepare(self._ahead.batch)
        return self._ahead.prepared

    def flags(self) -> list[float]:
        """Whether this rank has a batch ahead, or an error in its place; and whether it has an error."""
        drawn = self._ahead or _Drawn(None, "")
        return [float(drawn.batch is not None or drawn.error is not None), float(drawn.error is not None)]

    def agree(self, sums: Sequence[float]) -> None:
        """Take over what all ranks have ahead, by the sums of their flags."""
        if self._ahead is None:
            return
        self._having, failed = sums
        everyone = self._having == self._processes.world_size
        self.ready = not failed and (everyone or (self._ask and self._having > 0))

    def close(self) -> None:
        """End the threads that read."""
        self._ahead = None
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def _draw(self) -> _Drawn:
        batch = next(self._batches, None)
        return _Drawn(batch, self._loader.position.to_json())

    def _or_empty(self, batch: Batch | None) -> Batch:
        return self._loader.empty_batch() if batch is None else batch
