"""One shard of a table in FBGEMM's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.embedding.check import check_rows, check_states, check_weights
from recgrad.embedding.engine import EmbeddingTable, TableMemory, TablePart
from recgrad.embedding.local.layout import TABLE_COLUMNS
from recgrad.embedding.local.table import EXPORT_ROWS, Table
from recgrad.embedding.spec import TableSpec
from recgrad.optim.sparse.history import History
from recgrad.optim.sparse.tables import SparseEngine

Array = npt.NDArray[Any]


class FusedTable(EmbeddingTable):
    """All rows of a shard, with their initial values from the start, and which of them were updated.

    Args:
        spec: the shard.
        engine: that it belongs to.
        seed: of the initial values.
        weights: FBGEMM's [rows, dim].
        states: FBGEMM's, by our names, each [rows, width].
        touched: bool [rows], which of them were updated; the kernel sets it.
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
        touched: Tensor,
        flush: Callable[[], None],
        forget: Callable[[], None],
    ) -> None:
        super().__init__(spec, engine)
        self.weights = weights
        self.states = dict(states)
        self.touched = touched
        self._flush, self._forget = flush, forget
        _draw(spec, engine, seed, weights)

    def parts(self) -> Iterator[TablePart]:
        """All that was learned."""
        self._flush()
        rows = self.touched.nonzero().squeeze(1)
        states = {name: state[rows].cpu().numpy() for name, state in self.states.items()}
        yield TablePart(0, rows.cpu().numpy(), self.weights[rows].cpu().numpy(), states)

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
        where = torch.from_numpy(rows).to(self.weights.device)
        self.touched[where] = True
        return where

    def _set(self, rows: Tensor, into: Tensor, values: Array) -> None:
        self._flush()
        into[rows] = torch.tensor(values, device=into.device)
        self._forget()

    def memory(self) -> TableMemory:
        """Touched rows, and what all rows cost."""
        states = sum(state.numel() for state in self.states.values())
        touched = int(self.touched.sum())
        return TableMemory(self.name, touched, 4 * self.weights.numel(), 4 * states, self.touched.numel())


def _draw(spec: TableSpec, engine: SparseEngine, seed: int, weights: Tensor) -> None:
    """Write the initial values of all rows: those that an untouched row of the local engine has."""
    plain = replace(spec, storage="PLAIN")
    source = Table(plain, 0, np.zeros(TABLE_COLUMNS, np.int64), np.zeros(4), seed, engine)
    for first in range(0, len(weights), EXPORT_ROWS):
        rows = np.arange(first, min(first + EXPORT_ROWS, len(weights)))
        weights[first : first + len(rows)] = torch.from_numpy(source.initial(rows))
