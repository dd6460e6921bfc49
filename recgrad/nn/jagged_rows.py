"""Rows of jagged tensors joined, reversed, cut to their last positions, and their last positions alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from recgrad.nn.jagged import Segments


def join_rows(parts: Sequence[tuple[Tensor, Segments]]) -> tuple[Tensor, Segments]:
    """Rows of several jagged tensors in one: row b is [row b of the first | row b of the second | …]."""
    lengths = torch.stack([segments.lengths for _, segments in parts])
    values = torch.cat([value for value, _ in parts])
    joined = Segments.from_lengths(lengths.sum(0), values.shape[0])
    begins = joined.offsets + lengths.cumsum(0) - lengths
    places = [
        begin.index_select(0, segments.rows) + segments.places()
        for begin, (_, segments) in zip(begins, parts, strict=True)
    ]
    return torch.zeros_like(values).index_copy(0, torch.cat(places), values), joined


def reverse_rows(x: Tensor, segments: Segments) -> Tensor:
    """Each row's positions in reverse."""
    last = (segments.offsets + segments.lengths - 1).index_select(0, segments.rows)
    return x.index_select(0, last - segments.places())


def keep_last(values: Tensor, segments: Segments, limit: int) -> tuple[Tensor, Segments, Tensor | None]:
    """The last `limit` positions of each row, their rows, and which positions they are; None for all."""
    lengths = segments.lengths
    if not lengths.shape[0] or int(lengths.max()) <= limit:
        return values, segments, None
    left = lengths.index_select(0, segments.rows) - segments.places()
    kept = (left <= limit).nonzero().squeeze(1)
    return (
        values.index_select(0, kept),
        Segments.from_lengths(lengths.clamp(max=limit), kept.shape[0]),
        kept,
    )


def last_positions(values: Tensor, segments: Segments) -> Tensor:
    """[rows, width]: the last position of each row, 0 where it has none."""
    lengths = segments.lengths
    if values.shape[0] == 0:
        return (
            values.new_zeros(lengths.shape[0], values.shape[1]) + values.sum()
        )  # a gradient for all weights
    found = values.index_select(0, (segments.offsets + lengths - 1).clamp(min=0))
    return found * (lengths > 0).unsqueeze(1).to(found.dtype)
