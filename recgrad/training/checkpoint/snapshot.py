"""What a checkpoint holds: a step, a tree of values, and the touched rows of the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

AnyArray: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class TableRows:
    """The touched rows of one embedding table, with their optimizer states.

    Attributes:
        name: the table's name.
        num_rows: the height of the table, touched or not; row ids are below it.
        dim: width of a row.
        row_ids: int64 [n], strictly ascending.
        weights: [n, dim].
        states: optimizer states by name, each [n, width], or a scalar that belongs to the whole
            table, such as its number of updates.
    """

    name: str
    num_rows: int
    dim: int
    row_ids: npt.NDArray[np.int64]
    weights: AnyArray
    states: Mapping[str, AnyArray] = field(default_factory=dict)

    def problem(self) -> str | None:
        """What is wrong with the rows, or None."""
        ids = self.row_ids
        if ids.ndim != 1 or ids.dtype != np.int64:
            return f"row_ids must be int64 of one axis, got {ids.dtype} {list(ids.shape)}"
        if self.weights.shape != (len(ids), self.dim):
            return f"weights must be [{len(ids)}, {self.dim}], got {list(self.weights.shape)}"
        for name, state in self.states.items():
            if state.ndim != 0 and (state.ndim != 2 or len(state) != len(ids)):
                return f"state '{name}' must be [{len(ids)}, width] or a scalar, got {list(state.shape)}"
        if len(ids) and (ids[0] < 0 or ids[-1] >= self.num_rows):
            return f"row ids must be in 0 … {self.num_rows - 1}, got {ids[0]} … {ids[-1]}"
        if not bool(np.all(ids[1:] > ids[:-1])):
            return "row ids must be strictly ascending"
        return None

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """(width,) of each state, or () of a scalar, in the order of names."""
        return {name: state.shape[1:] for name, state in sorted(self.states.items())}

    @property
    def nbytes(self) -> int:
        """Bytes of the ids, weights and states."""
        arrays = (self.row_ids, self.weights, *self.states.values())
        return sum(array.nbytes for array in arrays)


@dataclass(frozen=True)
class Snapshot:
    """Everything a run needs to go on from a step.

    Attributes:
        step: optimizer updates done.
        tree: nested dicts, lists and tuples of tensors, numpy arrays, ints of any size, floats,
            bools, strings, bytes and None, such as {"model": …, "updater": …, "state": …}.
        tables: touched rows, one entry a table.
    """

    step: int
    tree: Mapping[str, Any]
    tables: Sequence[TableRows] = ()
