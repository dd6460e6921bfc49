"""Gradients that wait for an update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from recgrad.embedding.local.layout import TABLE, VECTOR_STRIDE, VECTORS

Array = npt.NDArray[Any]


@dataclass
class Source:
    """Gradients that wait for the update: lines of the lookup matrix that point to them."""

    order: tuple[int, int]  # forward pass and place in it: the order of summation
    lines: Array
    occurrences: Array
    gradient: Tensor
    keep: Any  # what the addresses of ids point to

    def times(self, factor: float) -> Source:
        """The same with every gradient multiplied; the tensors that autograd gave stay as they are."""
        scaled = (self.gradient * factor).contiguous()
        lines = self.lines.copy()
        lines[:, VECTORS] += scaled.data_ptr() - self.gradient.data_ptr()
        lines[:, VECTOR_STRIDE] = scaled.stride(0) * 4
        return Source(self.order, lines, self.occurrences, scaled, self.keep)


def only(source: Source, members: Sequence[int], tables: int) -> Source | None:
    """The part of a source that belongs to some of so many tables."""
    member = np.zeros(tables, bool)
    member[members] = True
    mask = member[source.lines[:, TABLE]]
    if mask.all():
        return source
    if not mask.any():
        return None
    return Source(source.order, source.lines[mask], source.occurrences[mask], source.gradient, source.keep)


@dataclass(frozen=True)
class Plan:
    """Distinct rows and their gradients, of the tables of some jobs; see `plan.py` for the arrays."""

    jobs: Array
    rows: Array
    slots: Array
    ends: Array
    gradients: Array
    coefficients: Array
    cuts: Array
    task_jobs: Array
    size: int  # occurrences
    packed: Array | None  # kept alive: `gradients` may point into it
