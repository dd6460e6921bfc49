"""One shard of a table in FBGEMM's memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.embedding.check import check_rows, check_states, check_weights
from recgrad.embedding.engine import EmbeddingTable, TableMemory, TablePart
from recgrad.embedding.local.changes import Changed, build_log
from recgrad.embedding.local.layout import TABLE_COLUMNS
from recgrad.embedding.local.row_copy import RowCopy
from recgrad.embedding.local.table import EXPORT_ROWS, Table
from recgrad.embedding.spec import TableSpec
from recgrad.optim.sparse.history import History
from recgrad.optim.sparse.tables import SparseEngine

Array = npt.NDArray[Any]
_WEIGHTS = "weights"  # among the arrays of a copy
KNOWN, CHANGED = 1, 2
"""Marks of a row that was updated, and of one that was since deltas last asked; 0 for all others."""


class FusedTable(EmbeddingTable):
    """All rows of a shard, with their initial values from the start, and which of them were updated.

    Args:
        spec: the shard.
        engine: that it belongs to.
        seed: of the initial values.
        weights: FBGEMM's [rows, dim].
        states: FBGEMM's, by our names, each [rows, width].
        marks: uint8 [rows], which of them were updated (CHANGED, KNOWN); whoever updates rows marks them.
        flush: brings rows from FBGEMM's cache into these.
        forget: empties FBGEMM's cache.
    """

    def __init__(
        self,
        spec: TableSpec,
        engine: SparseEngine,
        seed: int,
        weights: Tensor,
        states: Mapping[str, Tensor],
        marks: Tensor,
        flush: Callable[[], None],
        forget: Callable[[], None],
    ) -> None:
        super().__init__(spec, engine)
        self.weights = weights
        self.states = dict(states)
        self.marks = marks
        self._flush, self._forget = flush, forget
        self._copying: weakref.ref[RowCopy] | None = None
        _draw(spec, engine, seed, weights)

    def parts(self) -> Iterator[TablePart]:
        """All that was learned."""
        self._flush()
        rows = self.marks.nonzero().squeeze(1)
        states = {name: state[rows].cpu().numpy() for name, state in self.states.items()}
        yield TablePart(0, rows.cpu().numpy(), self.weights[rows].cpu().numpy(), states)

    # --- rows of one moment, for a checkpoint ---

    @property
    def copying(self) -> RowCopy | None:
        """A copy of an earlier moment that is not finished, to which whoever writes rows owes `keep`."""
        found = None if self._copying is None else self._copying()
        return None if found is None or found.done else found

    def begin_copy(self) -> Callable[[], list[TablePart]]:
        """`parts` of this moment; in host memory, copied by whoever calls it while training goes on.

        On a GPU they are copied at once: its cache may hold what is newer than the rows.
        """
        self.finish_copy()
        if self.weights.device.type != "cpu":
            return super().begin_copy()
        marks = self.marks.numpy().copy()

        def places() -> tuple[Array, Array]:
            rows = np.flatnonzero(marks)
            return rows, rows

        states = {name: state.numpy() for name, state in self.states.items()}
        copy = RowCopy({_WEIGHTS: self.weights.detach().numpy(), **states}, len(marks), places)
        self._copying = weakref.ref(copy)  # a copy that nobody wants any more ends by that

        def parts() -> list[TablePart]:
            rows, found = copy.collect()
            return [TablePart(0, rows, found[_WEIGHTS], {name: found[name] for name in states})]

        return parts

    def finish_copy(self) -> None:
        """Copy the rest, because rows are about to be written otherwise than by an update."""
        copying = self.copying
        if copying is not None:
            copying.collect()

    # --- rows and states from elsewhere ---

    def write(self, rows: Array, weights: Array) -> None:
        """Set rows; their states stay as they are."""
        values = np.ascontiguousarray(weights, np.float32)
        check_weights(self.spec, rows, values)
        self._set(self._touch(rows), self.weights, values)

    def set_states(self, states: Sequence[tuple[str, int, float]]) -> None:
        """Set all states to an optimizer's initial values; it must be the one that FBGEMM was made for."""
        asked = {name: width for name, width, _ in states}
        own = {name: state.shape[1] for name, state in self.states.items()}
        if asked != own:
            raise ValueError(
                f"table '{self.name}' has FBGEMM's kernels for an optimizer with states {own}, got {asked}"
            )
        self.finish_copy()
        for name, _, initial in states:
            self.states[name].fill_(initial)

    def import_states(self, rows: Array, values: dict[str, Array]) -> None:
        """Set the states of rows."""
        check_states(self.spec, {name: s.shape[1] for name, s in self.states.items()}, rows, values)
        where = self._touch(rows)
        for name, value in values.items():
            state = self.states[name]
            self._set(where, state, np.asarray(value, np.float32).reshape(len(rows), state.shape[1]))

    def follow(self, history: History | None) -> None:
        """FBGEMM's rows stay where they are."""
        raise ValueError(f"table '{self.name}' has FBGEMM's kernels, whose Adam is lazy, and lazy is false")

    def _touch(self, rows: Array) -> Tensor:
        rows = np.asarray(rows, np.int64)
        check_rows(self.spec, rows)
        where = self._here(rows)
        self.marks[where] = self.marks[where].clamp(min=KNOWN)
        return where

    def _set(self, rows: Tensor, into: Tensor, values: Array) -> None:
        self.finish_copy()
        self._flush()
        into[rows] = torch.tensor(values, device=into.device)
        self._forget()

    def memory(self) -> TableMemory:
        """Touched rows, and what all rows cost."""
        states = sum(state.numel() for state in self.states.values())
        touched = int(self.marks.count_nonzero())
        return TableMemory(self.name, touched, 4 * self.weights.numel(), 4 * states, self.marks.numel())

    # --- what has changed, for deltas ---

    def values(self, rows: Array) -> Array:
        """The weights of rows as they are now."""
        self._flush()
        return np.asarray(self.weights[self._here(rows)].cpu().numpy())

    def updated(self, rows: Array) -> Array:
        """Which of these rows were ever updated."""
        return np.asarray(self.marks[self._here(rows)].cpu().numpy() != 0)

    def take_changed(self) -> Array:
        """The rows that were updated since the last time, ascending; from now on they count as known."""
        rows = (self.marks == CHANGED).nonzero().squeeze(1)
        self.marks[rows] = KNOWN
        return np.asarray(rows.cpu().numpy())

    def _here(self, rows: Array) -> Tensor:
        return torch.from_numpy(rows).to(self.weights.device)


class FusedLog:
    """The rows of a shard that have changed since the last `take`."""

    def __init__(self, table: FusedTable) -> None:
        self.table = table
        self._marked: list[Array] = []
        table.take_changed()

    def mark(self, keys: Array) -> None:
        """Let rows count as changed, or as gone if they were never updated."""
        self._marked.append(np.asarray(keys, np.int64))

    def take(self) -> Changed:
        """What has changed; from now on it counts as known."""
        rows, marked = self.table.take_changed(), np.empty(0, np.int64)
        if self._marked:
            marked, self._marked = np.unique(np.concatenate(self._marked)), []
        known = self.table.updated(marked)
        if known.any():
            rows = np.union1d(rows, marked[known])
        return Changed(rows, self.table.values(rows), marked[~known], None)


build_log.register(FusedTable, FusedLog)


def _draw(spec: TableSpec, engine: SparseEngine, seed: int, weights: Tensor) -> None:
    """Write the initial values of all rows: those that an untouched row of the local engine has."""
    plain = replace(spec, storage="PLAIN")
    source = Table(plain, 0, np.zeros(TABLE_COLUMNS, np.int64), np.zeros(4), seed, engine)
    for first in range(0, len(weights), EXPORT_ROWS):
        rows = np.arange(first, min(first + EXPORT_ROWS, len(weights)))
        weights[first : first + len(rows)] = torch.from_numpy(source.initial(rows))
