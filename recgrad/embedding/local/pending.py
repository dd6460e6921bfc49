"""Gradients that wait for an update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
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


def only(source: Source, members: Tables) -> Source | None:
    """The part of a source that belongs to some tables."""
    if source.tables <= members:
        return source
    common = source.tables & members
    if not common:
        return None
    mask = np.isin(source.lines[:, TABLE], list(common))
    return Source(source.order, source.lines[mask], common, source.gradient, source.keep)
