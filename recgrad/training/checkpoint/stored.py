"""Tables that lie in several files: rows and columns are put together when they are asked for.

A table of many ranks is larger than the memory of one. Opening it looks at the row ids; weights
and states are read for the range that is asked for, one file at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.errors import CheckpointError
from recgrad.training.checkpoint.files import require
from recgrad.training.checkpoint.manifest import TableEntry
from recgrad.training.checkpoint.shards import check_column_ranges, open_shard
from recgrad.training.checkpoint.snapshot import PIECE_ROWS, AnyArray, Range, TableRows, slice_of


def open_table(folder: Path, entry: TableEntry) -> TableRows:
    """A table of a checkpoint; in one file it is mapped into memory, of several nothing is kept there.

    Raises:
        CheckpointError: naming the file and what is wrong with it.
    """
    columns = entry.columns or ((0, entry.dim),) * len(entry.shards)
    table: TableRows
    if len(entry.shards) == 1:
        table = open_shard(folder / entry.shards[0], entry, columns[0])
        where = f"{folder / entry.shards[0]}: table {entry.name[:200]!r}"
        problem = table.problem()
        require(problem is None, where, str(problem))
        require(not table.is_slice, where, "other columns of it are missing")
    else:
        where = f"{folder / entry.shards[0]}: table {entry.name[:200]!r}"
        table = StoredTable(folder, entry, where)
    require(
        table.touched_rows == entry.touched_rows, where, "has another number of rows than the manifest says"
    )
    return table


@dataclass(frozen=True)
class _File:
    """One shard: its file is opened when it is needed, for there may be thousands."""

    path: Path
    entry: TableEntry
    columns: tuple[int, int]
    touched_rows: int
    first_row: int
    last_row: int

    @property
    def column_range(self) -> Range:
        """The first column, and the one after the last."""
        return self.columns[0], sum(self.columns)

    def open(self) -> TableRows:
        """Its rows, mapped into memory."""
        return open_shard(self.path, self.entry, self.columns)

    def meets(self, rows: Range | None) -> bool:
        """Whether it may have rows of the range."""
        if rows is None:
            return self.touched_rows > 0
        return self.touched_rows > 0 and self.first_row < rows[1] and rows[0] <= self.last_row


@dataclass(frozen=True)
class _Cut:
    """Rows of a shard, and where they go."""

    file: _File
    rows: slice
    target: slice | npt.NDArray[np.intp]


@dataclass(frozen=True)
class _Plan:
    """The rows of a range in one slice of columns: their ids, and which rows of which files they are."""

    ids: npt.NDArray[np.int64]
    cuts: list[_Cut]
    columns: Range

    @staticmethod
    def of(group: list[_File], rows: Range | None) -> _Plan:
        """Look the rows up in the files of a slice."""
        found: list[tuple[_File, slice]] = []
        parts = [np.empty(0, np.int64)]
        for file in group:
            if file.meets(rows):
                shard = file.open()
                span = slice(*shard.span(rows))
                found.append((file, span))
                # A copy, for a view would keep the file open.
                parts.append(shard.row_ids[span].copy())
        ids = np.concatenate(parts)
        position: npt.NDArray[np.intp] | None = None
        if bool(np.any(ids[1:] < ids[:-1])):
            # Rows of the files lie in between each other.
            order = np.argsort(ids, kind="stable")
            position = np.empty(len(ids), np.intp)
            position[order] = np.arange(len(ids))
            ids = ids[order]
        cuts, start = [], 0
        for file, span in found:
            target = slice(start, start + span.stop - span.start)
            cuts.append(_Cut(file, span, target if position is None else position[target]))
            start = target.stop
        return _Plan(ids, cuts, group[0].column_range)


class StoredTable(TableRows):
    """The rows of a table in several files; arrays are read, and joined, each time they are asked for."""

    where: str
    sample: TableRows
    groups: list[list[_File]]

    def __init__(self, folder: Path, entry: TableEntry, where: str) -> None:
        columns = entry.columns or ((0, entry.dim),) * len(entry.shards)
        groups: dict[tuple[int, int], list[_File]] = {}
        sample: TableRows | None = None
        for path, pair in zip(entry.shards, columns):
            shard = open_shard(folder / path, entry, pair)
            problem = shard.problem()
            require(problem is None, folder / path, str(problem))
            sample = sample or _sample(shard)
            _check_alike(folder / path, sample, _sample(shard))
            ids = shard.row_ids
            bounds = (int(ids[0]), int(ids[-1])) if len(ids) else (-1, -1)
            groups.setdefault(pair, []).append(_File(folder / path, entry, pair, len(ids), *bounds))
        assert sample is not None
        check_column_ranges(where, entry.dim, sorted(groups))
        values = {"name": entry.name, "num_rows": entry.num_rows, "dim": entry.dim}
        values |= {"first_column": 0, "columns": None, "where": where, "sample": sample}
        values["groups"] = [sorted(groups[pair], key=lambda file: file.first_row) for pair in sorted(groups)]
        for name, value in values.items():
            # The class that this one stands in for cannot be changed once it is made.
            object.__setattr__(self, name, value)
        self._check_rows()

    @property
    def touched_rows(self) -> int:
        """How many rows there are."""
        return sum(file.touched_rows for file in self.groups[0])

    @property
    def row_ids(self) -> npt.NDArray[np.int64]:
        """The ids of all rows."""
        return self.ids_of(None)

    def ids_of(self, rows: Range | None) -> npt.NDArray[np.int64]:
        """The ids from rows[0] to before rows[1] that are here; files without any are not read."""
        return _Plan.of(self.groups[0], rows).ids

    @property
    def weights(self) -> AnyArray:
        """The weights of all rows."""
        return _Selection(self, None, (0, self.dim)).weights()

    @property
    def states(self) -> Mapping[str, AnyArray]:
        """The states of all rows; each is read when it is looked up."""
        return _Selection(self, None, (0, self.dim))

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """(width,) of each state, or () of a scalar, in the order of names."""
        return _full_shapes(self.sample)

    @property
    def nbytes(self) -> int:
        """Bytes of the ids, weights and states, put together."""
        widths = [(self.sample.weights.itemsize, self.dim), (8, 1)]
        widths += [(self.sample.states[n].itemsize, s[0]) for n, s in self.state_shapes.items() if s]
        scalars = sum(state.nbytes for state in self.sample.states.values() if state.ndim == 0)
        return self.touched_rows * sum(size * width for size, width in widths) + scalars

    def is_wide(self, state: str) -> bool:
        """Whether a state has a number for each column."""
        return self.sample.is_wide(state)

    def span(self, rows: Range | None) -> Range:
        """Where the rows with ids from rows[0] to before rows[1] lie."""
        if rows is None:
            return 0, self.touched_rows
        start, stop = 0, 0
        for file in self.groups[0]:
            below, above = file.open().span(rows)
            start, stop = start + below, stop + above
        return start, stop

    def part(self, rows: Range | None = None, columns: Range | None = None) -> TableRows:
        """The rows with ids from rows[0] to before rows[1], and of them some columns; read now."""
        columns = (0, self.dim) if columns is None else columns
        self.check_columns(columns)
        chosen = _Selection(self, rows, columns)
        at = slice_of(columns, self.dim)
        ids, weights = chosen.plans[0].ids, chosen.weights()
        return TableRows(self.name, self.num_rows, self.dim, ids, weights, dict(chosen), *at)

    def _check_rows(self) -> None:
        """Raise unless every row is once in every slice of columns."""
        totals = {sum(file.touched_rows for file in group) for group in self.groups}
        require(len(totals) == 1, self.where, "is damaged: its slices of columns have different rows")
        filled = [file for file in self.groups[0] if file.touched_rows]
        if len(self.groups) == 1 and all(a.last_row < b.first_row for a, b in pairwise(filled)):
            return
        for file in filled:
            for rows in _id_ranges(file):
                ids = _Plan.of(self.groups[0], rows).ids
                require(bool(np.all(ids[1:] > ids[:-1])), self.where, "row ids must be strictly ascending")
                for group in self.groups[1:]:
                    same = np.array_equal(ids, _Plan.of(group, rows).ids)
                    require(same, self.where, "is damaged: its slices of columns have different rows")


class _Selection(Mapping[str, AnyArray]):
    """A range of rows and columns of a stored table: a map of its states, each read when looked up."""

    def __init__(self, table: StoredTable, rows: Range | None, columns: Range) -> None:
        self.table, self.columns = table, columns
        self.plans = [
            _Plan.of(group, rows)
            for group in table.groups
            if group[0].column_range[0] < columns[1] and columns[0] < group[0].column_range[1]
        ]

    def __getitem__(self, name: str) -> AnyArray:
        sample = self.table.sample.states[name]
        if sample.ndim == 0:
            return sample
        if self.table.is_wide(name):
            return self._columns_of(lambda shard: shard.states[name], sample.dtype)
        return self._rows_of(name, sample)

    def __iter__(self) -> Iterator[str]:
        return iter(self.table.sample.states)

    def __len__(self) -> int:
        return len(self.table.sample.states)

    def weights(self) -> AnyArray:
        """The weights of the range."""
        return self._columns_of(lambda shard: shard.weights, self.table.sample.weights.dtype)

    def _columns_of(self, choose: Callable[[TableRows], AnyArray], dtype: np.dtype[Any]) -> AnyArray:
        """An array that is cut with the columns."""
        start, stop = self.columns
        pieces = [(plan, cut) for plan in self.plans for cut in plan.cuts]
        if len(pieces) == len(self.plans) == 1:
            plan, cut = pieces[0]
            return choose(cut.file.open())[cut.rows, start - plan.columns[0] : stop - plan.columns[0]]
        joined = np.empty((len(self.plans[0].ids), stop - start), dtype)
        for plan, cut in pieces:
            low, high = max(plan.columns[0], start), min(plan.columns[1], stop)
            values = choose(cut.file.open())[cut.rows, low - plan.columns[0] : high - plan.columns[0]]
            joined[cut.target, low - start : high - start] = values
        return joined

    def _rows_of(self, name: str, sample: AnyArray) -> AnyArray:
        """A state of whole rows, which every slice of columns has."""
        joined = np.empty((len(self.plans[0].ids), sample.shape[1]), sample.dtype)
        for plan in self.plans:
            for cut in plan.cuts:
                values = cut.file.open().states[name][cut.rows]
                if plan is self.plans[0]:
                    joined[cut.target] = values
                elif values.tobytes() != joined[cut.target].tobytes():
                    raise CheckpointError(
                        f"{cut.file.path}: is damaged: disagrees with another slice on state {name[:200]!r}"
                    )
        return joined


def _id_ranges(file: _File) -> Iterator[Range]:
    """Ranges of row ids that hold the rows of a file, some at a time."""
    ids = file.open().row_ids
    for start in range(0, len(ids), PIECE_ROWS):
        yield int(ids[start]), int(ids[min(start + PIECE_ROWS, len(ids)) - 1]) + 1


def _sample(shard: TableRows) -> TableRows:
    """No rows, but types, widths and scalars, free of the file."""
    states = {
        name: state.copy() if state.ndim == 0 else np.empty((0, state.shape[1]), state.dtype)
        for name, state in shard.states.items()
    }
    weights = np.empty((0, shard.width), shard.weights.dtype)
    ids = np.empty(0, np.int64)
    return TableRows(
        shard.name, shard.num_rows, shard.dim, ids, weights, states, shard.first_column, shard.columns
    )


def _full_shapes(sample: TableRows) -> dict[str, tuple[int, ...]]:
    return {
        name: (sample.dim,) if sample.is_wide(name) else shape for name, shape in sample.state_shapes.items()
    }


def _check_alike(path: Path, first: TableRows, shard: TableRows) -> None:
    require(
        _full_shapes(shard) == _full_shapes(first)
        and all(shard.states[name].dtype == state.dtype for name, state in first.states.items()),
        path,
        "has other optimizer states than the first shard",
    )
    require(
        shard.weights.dtype == first.weights.dtype, path, "has weights of another type than the first shard"
    )
    for name, state in first.states.items():
        agree = state.ndim != 0 or state.tobytes() == shard.states[name].tobytes()
        require(agree, path, f"the shards disagree on state {name[:200]!r}")
