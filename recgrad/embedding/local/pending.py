"""Gradients that wait for an update.

Backward copies nothing: it notes where autograd has left the gradient of an output, beside where the ids
lie that the output was made of, as lines of the lookup matrix (layout.py).

    forward                                  backward of columns 1 … 2 (`DimGroup.keep`)
    block [rows, 3 · dim]                    gradient [rows, 2 · dim], a tensor of autograd
    ┌────┬────┬────┐                         ┌────┬────┐
    │ c0 │ c1 │ c2 │                         │ c1 │ c2 │
    └────┴────┴────┘                         └────┴────┘
    lines: TABLE IDS OFFSETS BAGS …          the same lines, with VECTORS into the gradient: a Source

A Source keeps alive the gradient and the ids. Sources are added up by row in the order of their forward
passes (`order`), not in that in which autograd comes by, which may differ from run to run. All that
optimizers ask for before the update (scaling, clipping by value or norm, dropping) is done on sources;
scaling and clamping make new tensors, because autograd's own may have other readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.embedding.local.layout import TABLE, VECTOR_STRIDE, VECTORS

Array = npt.NDArray[Any]
Tables = frozenset[int]  # positions of tables
SUMMED = (-1, 0)  # the order of gradients that are sums per row already: before all others


@dataclass(slots=True)
class Source:
    """Gradients that wait for the update: lines of the lookup matrix that point to them."""

    order: tuple[int, int]  # forward pass and place in it: the order of summation
    lines: Array
    tables: Tables  # of the lines
    gradient: Tensor
    keep: Any  # what the addresses of ids point to

    def times(self, factor: float) -> Source:
        """The same with every gradient multiplied; the tensors that autograd gave stay as they are."""
        return self._with(self.gradient * factor)

    def clamped(self, limit: float) -> Source:
        """The same with every element of the gradients clamped to ±limit."""
        return self._with(self.gradient.clamp(-limit, limit))

    def _with(self, gradient: Tensor) -> Source:
        gradient = gradient.contiguous()
        lines = self.lines.copy()
        lines[:, VECTORS] += gradient.data_ptr() - self.gradient.data_ptr()
        lines[:, VECTOR_STRIDE] = gradient.stride(0) * 4
        return Source(self.order, lines, self.tables, gradient, self.keep)

    def of_line(self, i: int, dim: int) -> Tensor:
        """The gradient that one line points to, [bags, dim]."""
        column = (int(self.lines[i, VECTORS]) - self.gradient.data_ptr()) // 4
        return self.gradient[:, column : column + dim]


def only(source: Source, members: Tables) -> Source | None:
    """The part of a source that belongs to some tables."""
    if source.tables <= members:
        return source
    common = source.tables & members
    if not common:
        return None
    mask = np.isin(source.lines[:, TABLE], list(common))
    return Source(source.order, source.lines[mask], common, source.gradient, source.keep)


def per_output(sources: Sequence[Source], members: Tables, dim: int) -> list[Source]:
    """The same gradients, with one for each output of some tables: the sum over the uses of it.

    A model may take an output twice (a field that is part of two groups). Autograd would have added up the
    two gradients if they were one tensor; a limit per element means that sum, so it is made before clamping.
    """
    uses: dict[tuple[int, bytes], list[tuple[Source, int]]] = {}
    for source in sorted(sources, key=lambda s: s.order):
        if source.order != SUMMED:
            for i in np.flatnonzero(np.isin(source.lines[:, TABLE], list(members))).tolist():
                output = (id(source.keep), source.lines[i, :VECTORS].tobytes())  # what it has looked up
                uses.setdefault(output, []).append((source, i))
    several = [own for own in uses.values() if len(own) > 1]
    if not several:
        return list(sources)
    gone = {(id(source), i) for own in several for source, i in own}
    rest = [_without(source, gone) for source in sources]
    return [source for source in rest if len(source.lines)] + [_added(own, dim) for own in several]


def _without(source: Source, gone: set[tuple[int, int]]) -> Source:
    """A source without some of its lines."""
    left = [i for i in range(len(source.lines)) if (id(source), i) not in gone]
    lines = source.lines[left]
    return Source(source.order, lines, frozenset(lines[:, TABLE].tolist()), source.gradient, source.keep)


def _added(uses: Sequence[tuple[Source, int]], dim: int) -> Source:
    """The sum of the gradients of one output."""
    (source, i), *others = uses
    total = source.of_line(i, dim).clone(memory_format=torch.contiguous_format)
    for other, j in others:
        total += other.of_line(j, dim)
    line = source.lines[i : i + 1].copy()
    line[:, VECTORS], line[:, VECTOR_STRIDE] = total.data_ptr(), 4 * dim
    return Source(source.order, line, frozenset(line[:, TABLE].tolist()), total, source.keep)
