"""What an HSTU is given of each row."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from recgrad.nn.jagged import Segments
from recgrad.nn.jagged_rows import reverse_rows


@dataclass(frozen=True)
class Events:
    """Events of rows, oldest first: a history, or candidates.

    Attributes:
        values: [events, width].
        times: float64 [events], in seconds.
        segments: which row each event belongs to.
        actions: int64 [events], bits of what a user did; None where they are not used.
        watch_times: [events]; None where they are not used.
    """

    values: Tensor
    times: Tensor
    segments: Segments
    actions: Tensor | None = None
    watch_times: Tensor | None = None

    def reversed(self) -> Events:
        """The same with each row's events in reverse."""

        def turned(x: Tensor | None) -> Tensor | None:
            return None if x is None else reverse_rows(x, self.segments)

        return replace(
            self,
            values=reverse_rows(self.values, self.segments),
            times=reverse_rows(self.times, self.segments),
            actions=turned(self.actions),
            watch_times=turned(self.watch_times),
        )


@dataclass(frozen=True)
class HSTUInput:
    """Rows of an HSTU.

    Attributes:
        history: what users did.
        candidates: what is asked about; None for a model of the history alone.
        contextual: [rows, C · width], features of the row; None without any.
        query_times: float64 [rows], when the request comes, where that is given.
    """

    history: Events
    candidates: Events | None = None
    contextual: Tensor | None = None
    query_times: Tensor | None = None
