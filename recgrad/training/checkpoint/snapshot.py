"""What a checkpoint holds: a step, a tree of values, and the touched rows of the tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

AnyArray: TypeAlias = npt.NDArray[Any]
Range: TypeAlias = tuple[int, int]

PIECE_ROWS = 1 << 18


@dataclass(frozen=True)
class TableRows:
    """The touched rows of one embedding table, or a slice of their columns, with optimizer states.

    Attributes:
        name: the table's name.
        num_rows: the height of the table, touched or not; row ids are below it.
        dim: width of a row of the table.
        row_ids: int64 [n], strictly ascending.
        weights: [n, columns].
        states: optimizer states by name, each [n, width], or a scalar that belongs to the whole
            table, such as its number of updates. In a slice of columns, states of the columns
            have its width, and states of whole rows, width 1, are the same in every slice; in a
            slice of one column, a state of width 1 is the column's.
        first_column: where a slice of columns begins.
        columns: how many columns it has; None is all of dim.
    """

    name: str
    num_rows: int
    dim: int
    row_ids: npt.NDArray[np.int64]
    weights: AnyArray
    states: Mapping[str, AnyArray] = field(default_factory=dict)
    first_column: int = 0
    columns: int | None = None

    @property
    def width(self) -> int:
        """How many columns there are."""
        return self.dim if self.columns is None else self.columns

    @property
    def is_slice(self) -> bool:
        """Whether columns of the table are elsewhere."""
        return self.width != self.dim

    @property
    def touched_rows(self) -> int:
        """How many rows there are."""
        return len(self.row_ids)

    def problem(self) -> str | None:
        """What is wrong with the rows, or None."""
        ids = self.row_ids
        if ids.ndim != 1 or ids.dtype != np.int64:
            return f"row_ids must be int64 of one axis, got {ids.dtype} {list(ids.shape)}"
        if self.weights.shape != (len(ids), self.width):
            return f"weights must be [{len(ids)}, {self.width}], got {list(self.weights.shape)}"
        for name, state in self.states.items():
            if state.ndim != 0 and (state.ndim != 2 or len(state) != len(ids)):
                return f"state '{name}' must be [{len(ids)}, width] or a scalar, got {list(state.shape)}"
        if len(ids) and (ids[0] < 0 or ids[-1] >= self.num_rows):
            return f"row ids must be in 0 … {self.num_rows - 1}, got {ids[0]} … {ids[-1]}"
        if not bool(np.all(ids[1:] > ids[:-1])):
            return "row ids must be strictly ascending"
        return self._slice_problem()

    def _slice_problem(self) -> str | None:
        if not self.is_slice and self.first_column == 0:
            return None
        stop = self.first_column + self.width
        if not 0 <= self.first_column < stop <= self.dim:
            return f"columns {self.first_column} … {stop - 1} are not in 0 … {self.dim - 1}"
        for name, state in self.states.items():
            if state.ndim and state.shape[1] not in (1, self.width):
                return f"state '{name}' of a slice must have width 1 or {self.width}, got {state.shape[1]}"
        return None

    def is_wide(self, state: str) -> bool:
        """Whether a state has a number for each column, so that it is cut where the weights are."""
        shape = self.states[state].shape
        return len(shape) == 2 and shape[1] == self.width and (self.is_slice or self.width > 1)

    def span(self, rows: Range | None) -> Range:
        """Where the rows with ids from rows[0] to before rows[1] lie."""
        if rows is None:
            return 0, len(self.row_ids)
        _check_range("rows", rows)
        start, stop = np.searchsorted(self.row_ids, rows)
        return int(start), int(stop)

    def ids_of(self, rows: Range | None) -> npt.NDArray[np.int64]:
        """The ids from rows[0] to before rows[1] that are here."""
        return self.row_ids[slice(*self.span(rows))]

    def count(self, rows: Range) -> int:
        """How many touched rows have ids from rows[0] to before rows[1]."""
        start, stop = self.span(rows)
        return stop - start

    def part(self, rows: Range | None = None, columns: Range | None = None) -> TableRows:
        """The rows with ids from rows[0] to before rows[1], and of them some columns; no copy.

        Columns are numbered as the table's. States that have one number for each column are
        cut with the weights, all others are whole.
        """
        start, stop = self.span(rows)
        if columns is None:
            columns = self.first_column, self.first_column + self.width
        self.check_columns(columns)
        at = slice(columns[0] - self.first_column, columns[1] - self.first_column)
        states = {}
        for name, state in self.states.items():
            if state.ndim == 0:
                states[name] = state
            else:
                states[name] = state[start:stop, at] if self.is_wide(name) else state[start:stop]
        return TableRows(
            self.name,
            self.num_rows,
            self.dim,
            self.row_ids[start:stop],
            self.weights[start:stop, at],
            states,
            *slice_of(columns, self.dim),
        )

    def check_columns(self, columns: Range) -> None:
        """Raise a ValueError unless the columns are all here."""
        _check_range("columns", columns)
        first, stop = self.first_column, self.first_column + self.width
        if not first <= columns[0] < columns[1] <= stop:
            raise ValueError(f"table '{self.name}': columns must be in {first} … {stop}, got {columns}")

    def pieces(self, rows: Range | None = None, *, max_rows: int = PIECE_ROWS) -> Iterator[TableRows]:
        """Parts of at most `max_rows` touched rows, ascending; one, maybe empty, at least.

        Of a table in several files, no more than a part is in memory at a time.
        """
        ids = self.ids_of(rows)
        if not len(ids):
            yield self.part((0, 0))
        for first in range(0, len(ids), max_rows):
            last = min(first + max_rows, len(ids)) - 1
            yield self.part((int(ids[first]), int(ids[last]) + 1))

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """(width,) of each state, or () of a scalar, in the order of names."""
        return {name: state.shape[1:] for name, state in sorted(self.states.items())}

    @property
    def nbytes(self) -> int:
        """Bytes of the ids, weights and states."""
        arrays = (self.row_ids, self.weights, *self.states.values())
        return sum(array.nbytes for array in arrays)


class DeferredTables(Sequence[TableRows]):
    """Tables that are made when they are first looked at, once, in the thread that looks.

    Args:
        makers: of the parts of each table.
    """

    def __init__(self, makers: Sequence[Callable[[], list[TableRows]]]) -> None:
        self._makers = list(makers)
        self._made: list[TableRows] = []
        self._lock = threading.Lock()

    def _tables(self) -> list[TableRows]:
        with self._lock:
            while self._makers:
                self._made += self._makers[0]()
                del self._makers[0]
        return self._made

    def __len__(self) -> int:
        return len(self._tables())

    def __getitem__(self, index: Any) -> Any:
        return self._tables()[index]


class DeferredBranch(Mapping[str, Any]):
    """A branch of the tree that is made when it is first looked at, once, in the thread that looks."""

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make: Callable[[], Mapping[str, Any]] | None = make
        self._made: Mapping[str, Any] = {}
        self._lock = threading.Lock()

    def _branch(self) -> Mapping[str, Any]:
        with self._lock:
            if self._make is not None:
                self._made, self._make = self._make(), None
        return self._made

    def __len__(self) -> int:
        return len(self._branch())

    def __iter__(self) -> Iterator[str]:
        return iter(self._branch())

    def __getitem__(self, key: str) -> Any:
        return self._branch()[key]


@dataclass(frozen=True)
class Snapshot:
    """Everything a run needs to resume from a step.

    Attributes:
        step: optimizer updates done.
        tree: nested dicts, lists and tuples of tensors, numpy arrays, ints of any size, floats,
            bools, strings, bytes and None, such as {"model": …, "updater": …, "state": …}.
        tables: touched rows. What is read from a checkpoint has one entry a table; what is
            written may have several, each with other rows or other columns.
        computed_on: of each rank, the conditions that its bits depend on; empty if unknown.
        versions: of the packages that wrote it; known of what is read, and stamped again when written.
    """

    step: int
    tree: Mapping[str, Any]
    tables: Sequence[TableRows] = ()
    computed_on: Sequence[Mapping[str, str]] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


def slice_of(columns: Range, dim: int) -> tuple[int, int | None]:
    """`first_column` and `columns` of a TableRows."""
    return columns[0], None if columns == (0, dim) else columns[1] - columns[0]


def _check_range(what: str, given: Range) -> None:
    if not 0 <= given[0] <= given[1]:
        raise ValueError(f"{what} must be (start, stop) with 0 <= start <= stop, got {given}")
