"""Lines of the lookup matrix that batches of one shape have in common.

A line tells where the ids of a column are and where its vectors go (layout.py). Counted from the start of all
ids, offsets, weights and the output, it is the same for every batch of a shape, and kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recgrad.embedding.local.inputs import Inputs, new_block
from recgrad.embedding.local.layout import (
    BAGS,
    ID_WEIGHTS,
    IDS,
    INDEX,
    KIND,
    OFFSETS,
    TABLE,
    VECTOR_STRIDE,
    VECTORS,
)
from recgrad.embedding.local.lookup import BAGS_PER_TASK, TASK_COLUMNS
from recgrad.kernels.simd import F32, LANES

Array = npt.NDArray[Any]
_SHAPES = 16  # of batches that are remembered


class Frame(NamedTuple):
    """What the pooled lookups of a batch of one shape have in common."""

    rows: int
    lines: Array  # of the lookup matrix, counted from the start of ids, offsets, weights and output
    tasks: Array


class Frames:
    """The frames of the lookups of one dim.

    Args:
        fixed: int64 [columns, LOOKUP_COLUMNS], with what no batch changes.
        keys: the place of each column's key among those of its inputs.
        pooled: how many columns are pooled, the first ones.
        dim: of their tables.
        matrix: of the tables; the kernels write to it.

    Attributes:
        room: columns of memory before each row of a block.
    """

    def __init__(self, fixed: Array, keys: Array, pooled: int, dim: int, matrix: Array) -> None:
        self.room = 0
        self._fixed, self._keys, self._pooled, self._dim = fixed, keys, pooled, dim
        self._matrix = matrix
        self._used = np.unique(fixed[:pooled, TABLE])
        self._known: dict[tuple[Any, ...], Frame] = {}

    def leave_room(self, columns: int) -> None:
        """Leave memory for so many columns before each row of a block, in whole cache lines."""
        self.room = max(self.room, -(-columns // LANES) * LANES)
        self._known.clear()

    def of(self, ids: Inputs) -> Frame:
        """The pooled lookups of a batch of this shape."""
        # A compact table may become plain between two batches.
        plain = not self._matrix[self._used, INDEX].any()
        key = (ids.bags.counts, ids.offsets is None, ids.weights is None, plain)
        known = self._known.get(key)
        if known is not None:
            return known
        p = self._pooled
        lines = self.relative(ids, 0, p)
        rows = int(lines[0, BAGS])
        if (lines[:, BAGS] != rows).any():
            raise ValueError(f"pooled features must have one bag per row, got {lines[:, BAGS].tolist()}")
        lines[:, VECTORS] = np.arange(p) * self._dim * 4
        lines[:, VECTOR_STRIDE] = 4 * new_block(0, p * self._dim, self.room).stride(0)
        floats = (self._matrix[self._used, KIND] == F32).all()
        simple = bool(floats and plain and ids.offsets is None and ids.weights is None)
        if len(self._known) >= _SHAPES:
            self._known.clear()
        self._known[key] = frame = Frame(rows, lines, lookup_tasks_of(0, p, rows, BAGS_PER_TASK, simple))
        return frame

    def absent(self, first: int, last: int) -> Array:
        """Lines of columns that a forward pass does not look up."""
        lines = self._fixed[first:last].copy()
        lines[:, BAGS] = -1
        return lines

    def relative(self, inputs: Inputs, first: int, last: int) -> Array:
        """Where the ids of some columns are, counted from the start of all ids, offsets and weights."""
        lines, keys = self._fixed[first:last].copy(), self._keys[first:last]
        bag = inputs.bags.first[keys]
        lines[:, BAGS] = inputs.bags.first[keys + 1] - bag
        if inputs.offsets is None:
            lines[:, IDS] = 8 * bag
            lines[:, ID_WEIGHTS] = 4 * bag if inputs.weights is not None else 0
        else:
            lines[:, OFFSETS] = 8 * bag
        return lines


def lookup_tasks_of(first: int, last: int, bags: int, per_task: int, simple: bool) -> Array:
    """The bags of columns first … last − 1, some at a time, as tasks of the lookup kernel."""
    begin = np.arange(0, bags, per_task, dtype=np.int64)
    tasks = np.empty((len(begin), TASK_COLUMNS), np.int64)
    tasks[:, 0], tasks[:, 1], tasks[:, 2] = first, last, begin
    tasks[:, 3] = np.minimum(begin + per_task, bags)
    tasks[:, 4] = simple
    return tasks
