"""Rows of jagged tensors joined, reversed, cut to their last positions, and their last positions alone.

While a model is exported, results have as many places for every row as the longest may need, so that
their shapes follow from those of the inputs: places behind a row's length belong to no row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from recgrad.nn.jagged import Segments, pad


def join_rows(parts: Sequence[tuple[Tensor, Segments]]) -> tuple[Tensor, Segments]:
    """Rows of several jagged tensors in one: row b is [row b of the first | row b of the second | …]."""
    if torch.compiler.is_exporting():
        return _join_places(parts)
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
    last = (segments.offsets + segments.lengths - 1).index_select(0, segments.inside())
    return take_positions(x, last - segments.places())


def keep_last(values: Tensor, segments: Segments, limit: int) -> tuple[Tensor, Segments, Tensor | None]:
    """The last `limit` positions of each row, their rows, and which positions they are; None for all."""
    lengths = segments.lengths
    if torch.compiler.is_exporting():
        left = lengths.clamp(max=limit)
        chosen = (segments.offsets + lengths - left).unsqueeze(1) + torch.arange(limit)
        nothing = torch.full_like(chosen, values.shape[0])
        chosen = torch.where(torch.arange(limit) < left.unsqueeze(1), chosen, nothing).flatten()
        return take_positions(values, chosen), _spread(left, limit), chosen
    if not lengths.shape[0] or int(lengths.max()) <= limit:
        return values, segments, None
    before = lengths.index_select(0, segments.rows) - segments.places()
    kept = (before <= limit).nonzero().squeeze(1)
    shorter = Segments.from_lengths(lengths.clamp(max=limit), kept.shape[0])
    return values.index_select(0, kept), shorter, kept


def take_positions(x: Tensor, index: Tensor) -> Tensor:
    """Some positions of x; while exporting, 0 for numbers that are none."""
    if not torch.compiler.is_exporting():
        return x.index_select(0, index)
    filled = torch.cat([x, x.new_zeros(1, *x.shape[1:])])
    return filled[index.clamp(min=0, max=x.shape[0])]


def drop_places(segments: Segments, first: int, counts: Tensor) -> tuple[Tensor, Segments]:
    """While exporting: which positions are left without `counts` [rows] of them from place `first` on."""
    most, left = segments.longest(), segments.lengths - counts
    place = torch.arange(most)
    source = torch.where(place < first, place, place + counts.unsqueeze(1))
    nothing = segments.rows.shape[0]
    index = torch.where(place < left.unsqueeze(1), segments.offsets.unsqueeze(1) + source, nothing)
    return index.flatten(), _spread(left, most)


def last_positions(values: Tensor, segments: Segments) -> Tensor:
    """[rows, width]: the last position of each row, 0 where it has none."""
    lengths = segments.lengths
    if not torch.compiler.is_compiling() and values.shape[0] == 0:
        # The sum of nothing gives all weights a gradient, for processes wait for each other's.
        return values.new_zeros(lengths.shape[0], values.shape[1]) + values.sum()
    found = take_positions(values, (segments.offsets + lengths - 1).clamp(min=0))
    return found * (lengths > 0).unsqueeze(1).to(found.dtype)


def _spread(lengths: Tensor, most: int) -> Segments:
    """Rows with `most` places each, of which the first `lengths` are theirs."""
    rows = torch.arange(lengths.shape[0])
    place = torch.arange(most)
    own = torch.where(place < lengths.unsqueeze(1), rows.unsqueeze(1), lengths.shape[0])
    return Segments(lengths, rows * most, own.flatten(), most)


def _join_places(parts: Sequence[tuple[Tensor, Segments]]) -> tuple[Tensor, Segments]:
    padded = [pad(value.unsqueeze(1) if value.dim() == 1 else value, segments) for value, segments in parts]
    whole = torch.cat(padded, dim=1)
    most = whole.shape[1]
    place = torch.arange(most).unsqueeze(0)
    total, start, source = torch.zeros_like(parts[0][1].lengths).unsqueeze(1), 0, place
    for part, (_, segments) in zip(padded, parts, strict=True):
        source = torch.where(place >= total, start + place - total, source)
        total, start = total + segments.lengths.unsqueeze(1), start + part.shape[1]
    rows = torch.arange(whole.shape[0]).unsqueeze(1)
    index = rows * most + source.clamp(min=0, max=most - 1)
    return whole.flatten(0, 1)[index.flatten()], _spread(total.squeeze(1), most)
