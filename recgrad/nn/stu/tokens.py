"""Tokens of rows, those of a row as [contextual | history | candidates]."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recgrad.nn.jagged import Segments
from recgrad.nn.jagged_rows import drop_places, last_positions, take_positions


@dataclass(frozen=True)
class Tokens:
    """What a stack of STU layers works on.

    Attributes:
        values: [tokens, dim].
        times: float64 [tokens], when each happened, in seconds; 0 for contextual ones.
        segments: which row each token belongs to.
        targets: int64 [rows], the number of candidate tokens at each row's end.
        contextual: the number of contextual tokens at each row's beginning.
    """

    values: Tensor
    times: Tensor
    segments: Segments
    targets: Tensor
    contextual: int = 0

    def with_values(self, values: Tensor) -> Tokens:
        """The same tokens with other vectors."""
        return replace(self, values=values)

    def history_ends(self) -> Tensor:
        """int64 [rows]: where candidates begin in each row."""
        return self.segments.lengths - self.targets

    def candidates(self, segments: Segments, tokens: int = 1) -> Tokens:
        """The candidates alone, which are these; of each the first of its `tokens`."""
        begins = (self.segments.offsets + self.history_ends()).index_select(0, segments.inside())
        index = begins + tokens * segments.places()
        values, times = self.values.index_select(0, index), self.times.index_select(0, index)
        return Tokens(values, times, segments, segments.lengths)

    def tail(self, count: int) -> Tokens:
        """Contextual tokens, the last `count` of the history, and candidates."""
        ends = self.history_ends()
        dropped = (ends - self.contextual - count).clamp(min=0)
        if torch.compiler.is_exporting():
            index, segments = drop_places(self.segments, self.contextual, dropped)
            values, times = take_positions(self.values, index), take_positions(self.times, index)
            return Tokens(values, times, segments, self.targets, self.contextual)
        place, rows = self.segments.places(), self.segments.rows
        chosen = (place < self.contextual) | (place >= (ends - count)[rows])
        index = chosen.nonzero().squeeze(1)
        segments = Segments.from_lengths(self.segments.lengths - dropped, index.shape[0])
        values, times = self.values.index_select(0, index), self.times.index_select(0, index)
        return Tokens(values, times, segments, self.targets, self.contextual)

    def last(self) -> Tensor:
        """[rows, dim]: the last token of each row, 0 where it has none."""
        return last_positions(self.values, self.segments)
