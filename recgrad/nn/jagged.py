"""Sums, softmax and padding over the positions of rows of different lengths.

A jagged tensor is `values` [positions, …], the positions of all rows one after another, and
`lengths` [rows]. Nothing is computed for padding, which on a CPU is most of the work that a
padded form would do.

While a model is exported (`torch.compiler.is_exporting()`), each function gives the same in operators
that every runtime has, and with shapes that follow from those of the inputs: what is cut off goes to a row
behind the last, and the longest row is as long as the graph's input of `exported_places` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_PLACES: ContextVar[Tensor | None] = ContextVar("places", default=None)


@contextmanager
def exported_places(places: Tensor) -> Iterator[None]:
    """Export in this block with `places` [L], 0 … L − 1: no row of any sequence is longer than L."""
    token = _PLACES.set(places)
    try:
        yield
    finally:
        _PLACES.reset(token)


@dataclass(frozen=True)
class Segments:
    """Which row each position belongs to.

    Attributes:
        lengths: int64 [rows], the number of positions of each row.
        offsets: int64 [rows], where each row begins.
        rows: int64 [positions], the row of each position; while exporting, the number of rows for a
            position that was cut off.
        most: while exporting, what no row exceeds, where that is known.
    """

    lengths: Tensor
    offsets: Tensor
    rows: Tensor
    most: int | None = None

    @classmethod
    def from_lengths(cls, lengths: Tensor, positions: int) -> Segments:
        """Segments of rows with these lengths, `positions` in all."""
        lengths = lengths.long()
        offsets = lengths.cumsum(0) - lengths
        if torch.compiler.is_exporting():
            # The row of a position is the number of rows that begin at or before it, less one.
            begins = torch.zeros(positions + 1, dtype=torch.int64).index_add(
                0, offsets, torch.ones_like(offsets)
            )
            return cls(lengths, offsets, begins.cumsum(0)[:positions] - 1)
        index = torch.arange(lengths.shape[0], device=lengths.device)
        rows = torch.repeat_interleave(index, lengths, output_size=positions)
        return cls(lengths, offsets, rows)

    def places(self) -> Tensor:
        """int64 [positions]: the place of each position in its row, from 0."""
        count = torch.arange(self.rows.shape[0], device=self.rows.device)
        return count - self.offsets.index_select(0, self.inside())

    def longest(self) -> int:
        """The number of positions of the longest row; while exporting, what no row exceeds."""
        if torch.compiler.is_exporting():
            if self.most is not None:
                return self.most
            places = _PLACES.get()
            if places is None:
                raise RuntimeError("padding needs `exported_places` while a model is exported")
            return places.shape[0]
        return int(self.lengths.max()) if len(self.lengths) else 0

    def inside(self) -> Tensor:
        """`rows` with a row that exists for positions that were cut off."""
        return self.rows.clamp(max=self.lengths.shape[0] - 1) if torch.compiler.is_exporting() else self.rows


def repeat_rows(x: Tensor, segments: Segments) -> Tensor:
    """x [rows, width] once for each position, as [positions, width]."""
    if torch.compiler.is_exporting():
        return x.index_select(0, segments.inside())
    return _RepeatRows.apply(x, segments.offsets, segments.rows)  # type: ignore[no-any-return, no-untyped-call]


def segment_sum(values: Tensor, segments: Segments, weights: Tensor | None = None) -> Tensor:
    """Σ over each row's positions of (weight ·) value, as [rows, width]; 0 for empty rows."""
    if torch.compiler.is_exporting():
        weighted = values if weights is None else values * weights.unsqueeze(1)
        rows = segments.lengths.shape[0]
        return values.new_zeros(rows + 1, values.shape[1]).index_add(0, segments.rows, weighted)[:rows]
    if weights is None:
        return _SegmentSum.apply(values, segments.offsets, segments.rows)  # type: ignore[no-any-return, no-untyped-call]
    weights = weights.to(values.dtype)  # under autocast, scores come in half precision
    return _WeightedSum.apply(values, weights, segments.offsets, segments.rows)  # type: ignore[no-any-return, no-untyped-call]


def segment_mean(values: Tensor, segments: Segments) -> Tensor:
    """The mean of each row's values, as [rows, width]; 0 for empty rows."""
    return segment_sum(values, segments) / segments.lengths.clamp(min=1).unsqueeze(1)


def segment_softmax(scores: Tensor, segments: Segments) -> Tensor:
    """exp(s) / Σ exp(s) over the positions of each row, for scores [positions]."""
    if torch.compiler.is_exporting():
        count = segments.lengths.shape[0] + 1
        none = scores.new_full((count,), torch.finfo(scores.dtype).min)
        top = none.scatter_reduce(0, segments.rows, scores, "amax")
        shifted = torch.exp(scores - top.index_select(0, segments.rows))
        total = scores.new_zeros(count).index_add(0, segments.rows, shifted)
        return shifted / total.index_select(0, segments.rows)
    if scores.shape[0] == 0:
        return scores
    top = torch.segment_reduce(scores.detach(), "max", lengths=segments.lengths, unsafe=True)
    shifted = torch.exp(scores - top.index_select(0, segments.rows))
    total = scores.new_zeros(segments.lengths.shape[0]).index_add(0, segments.rows, shifted)
    return shifted / total.index_select(0, segments.rows)


def truncate(values: Tensor, segments: Segments, limit: int) -> tuple[Tensor, Segments]:
    """The first `limit` positions of each row; everything when limit is 0."""
    if limit <= 0:
        return values, segments
    if torch.compiler.is_exporting():
        beyond = torch.full_like(segments.rows, segments.lengths.shape[0])
        rows = torch.where(segments.places() < limit, segments.rows, beyond)
        return values, Segments(segments.lengths.clamp(max=limit), segments.offsets, rows)
    kept = values[segments.places() < limit]
    return kept, Segments.from_lengths(segments.lengths.clamp(max=limit), kept.shape[0])


def pad(values: Tensor, segments: Segments, length: int | None = None) -> Tensor:
    """[rows, length, width], zeros after each row's positions; `length` is the longest row's by default."""
    rows = segments.lengths.shape[0]
    if length is None:
        length = segments.longest()
    if torch.compiler.is_exporting():
        places = torch.arange(length).unsqueeze(0)
        nothing = torch.full_like(segments.offsets, values.shape[0]).unsqueeze(1)
        index = torch.where(
            places < segments.lengths.unsqueeze(1), segments.offsets.unsqueeze(1) + places, nothing
        )
        return torch.cat([values, values.new_zeros(1, values.shape[1])])[index]
    padded = values.new_zeros(rows * length, values.shape[1])
    index = segments.rows * length + segments.places()
    return padded.index_copy(0, index, values).view(rows, length, values.shape[1])


class _RepeatRows(torch.autograd.Function):
    """Gather forwards, segment sum backwards: several times faster than index_select's index_add."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, offsets: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(offsets)
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (offsets,) = ctx.saved_tensors
        return _sum(grad, offsets), None, None


class _SegmentSum(torch.autograd.Function):
    """Segment sum forwards, gather backwards."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return _sum(values, offsets)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        return grad.index_select(0, rows), None, None


class _WeightedSum(torch.autograd.Function):
    """Weighted segment sum, with gradients for values and weights."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, offsets: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(values, weights, rows)
        return _sum(values, offsets, weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        values, weights, rows = ctx.saved_tensors
        spread = grad.index_select(0, rows)
        return spread * weights.unsqueeze(1), (spread * values).sum(1), None, None


def _sum(values: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Segment sums by the embedding-bag kernel, the fastest of torch's ways on a CPU."""
    if values.shape[0] == 0:
        return values.new_zeros(offsets.shape[0], values.shape[1])
    index = torch.arange(values.shape[0], device=values.device)
    return F.embedding_bag(index, values.contiguous(), offsets, mode="sum", per_sample_weights=weights)
