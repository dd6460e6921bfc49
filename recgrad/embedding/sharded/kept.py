"""Gradients of a fused lookup's outputs that wait for the update, and their sums by row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    """How the outputs of a kernel are laid out.

    Attributes:
        tables: by feature, the name of its table.
        dims: by feature, the width of its table.
        sequence: an output is a vector for each id, [ids, dim], not a sum for each bag, [bags, sum of dims].
    """

    tables: tuple[str, ...]
    dims: tuple[int, ...]
    sequence: bool

    def columns(self, feature: int) -> slice:
        """Where a feature's sums lie."""
        first = sum(self.dims[:feature])
        return slice(first, first + self.dims[feature])


class Bags(NamedTuple):
    """Ids of all features, feature after feature.

    Attributes:
        ids: int64.
        lengths: of each feature as many bags; for a sequence, bags mean nothing.
        weights: one for each id, or None.
    """

    ids: Tensor
    lengths: Tensor
    weights: Tensor | None

    @property
    def offsets(self) -> Tensor:
        """Where each bag begins, and where the last ends."""
        ends = self.lengths.new_zeros(len(self.lengths) + 1, dtype=torch.int64)
        torch.cumsum(self.lengths, 0, out=ends[1:])
        return ends


@dataclass(slots=True)
class Kept:
    """The gradient of one forward pass's output.

    Attributes:
        bags: what was looked up.
        gradient: as autograd gave it, or a copy.
        tables: names of those whose gradients still wait.
        output: of FBGEMM; its backward makes the update.
        made_with: the forward pass and the hyperparameters that the output's backward will use.
    """

    bags: Bags
    gradient: Tensor
    tables: set[str]
    output: Tensor
    made_with: object
    own: bool = field(default=False)  # the gradient is a copy, which may be changed in place


def pieces(kept: Kept, layout: Layout, names: set[str]) -> Iterator[tuple[int, Tensor]]:
    """Features of some tables, each with its part of the gradient, as views."""
    first = _firsts(kept.bags, layout) if layout.sequence else []
    for feature, table in enumerate(layout.tables):
        if table in names & kept.tables:
            rows = slice(first[feature], first[feature + 1]) if layout.sequence else slice(None)
            columns = slice(None) if layout.sequence else layout.columns(feature)
            yield feature, kept.gradient[rows, columns]


def scale(kept: Kept, layout: Layout, names: set[str], factor: float) -> None:
    """Multiply the gradients of some tables; the tensor that autograd gave stays as it is."""
    if kept.tables <= names:
        kept.gradient = kept.gradient * factor
    else:
        kept.gradient = kept.gradient if kept.own else kept.gradient.clone()
        for _, piece in pieces(kept, layout, names):
            piece.mul_(factor)
    kept.own = True


def rows_of(kept: Kept, layout: Layout, table: str, limit: float) -> Iterator[tuple[Tensor, Tensor]]:
    """The ids of a table's features and a gradient for each, elements of outputs' clamped to ±limit."""
    firsts = _firsts(kept.bags, layout)
    count = len(kept.bags.lengths) // len(layout.tables)
    for feature, piece in pieces(kept, layout, {table}):
        ids = slice(firsts[feature], firsts[feature + 1])
        gradient = clamped(piece, limit)
        if not layout.sequence:
            lengths = kept.bags.lengths[feature * count : (feature + 1) * count]
            bag = torch.arange(count, device=lengths.device).repeat_interleave(lengths)
            gradient = gradient[bag]
            if kept.bags.weights is not None:
                gradient = gradient * kept.bags.weights[ids].unsqueeze(1)
        yield kept.bags.ids[ids], gradient


def clamped(gradient: Tensor, limit: float) -> Tensor:
    """Each element within ±limit."""
    return gradient if math.isinf(limit) else gradient.clamp(-limit, limit)


def sum_by_row(found: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Distinct rows, ascending, and the sum of the gradients of each."""
    ids, gradients = zip(*found)
    rows, place = torch.unique(torch.cat(ids), return_inverse=True)
    every = torch.cat(gradients)
    return rows, every.new_zeros(len(rows), every.shape[1]).index_add_(0, place, every)


def bags_of_rows(sums: dict[str, tuple[Tensor, Tensor]], layout: Layout) -> tuple[Bags, Tensor]:
    """One bag for each distinct row, and the gradient of the output, so that an update uses these sums."""
    device = next(iter(sums.values()))[0].device
    taken = {table: layout.tables.index(table) for table in sums}
    widest = 1 if layout.sequence else max(len(rows) for rows, _ in sums.values())
    lengths = torch.zeros(len(layout.tables), widest, dtype=torch.int64, device=device)
    width = layout.dims[0] if layout.sequence else sum(layout.dims)
    ordered = sorted(taken, key=lambda table: taken[table])
    if layout.sequence:
        for table in ordered:
            lengths[taken[table]] = len(sums[table][0])
        gradient = torch.cat([sums[table][1] for table in ordered])
    else:
        gradient = torch.zeros(widest, width, device=device)
        for table in ordered:
            rows, values = sums[table]
            lengths[taken[table], : len(rows)] = 1
            gradient[: len(rows), layout.columns(taken[table])] = values
    ids = torch.cat([sums[table][0] for table in ordered])
    return Bags(ids, lengths.view(-1), None), gradient


def _firsts(bags: Bags, layout: Layout) -> list[int]:
    """Where the ids of each feature begin, and where the last end."""
    offsets = bags.offsets
    found: list[int] = offsets[:: (len(offsets) - 1) // len(layout.tables)].tolist()
    return found
