"""What a checkpoint needs of an embedding engine and of its optimizer, whichever they are.

Rows go in with the table's own row numbers and in full width. A store that holds a part of a
table takes what is its own and leaves the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from recgrad.embedding.spec import TableSpec
from recgrad.training.checkpoint.snapshot import AnyArray, Range, TableRows


class Table(Protocol):
    """A table of an engine."""

    @property
    def spec(self) -> TableSpec:
        """Its name, height and width."""

    def row_ranges(self) -> Sequence[Range]:
        """The rows that this process holds, also in part."""


class TableStore(Protocol):
    """An embedding engine."""

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables by name."""

    def import_table(self, name: str, row_ids: AnyArray, weights: AnyArray) -> None:
        """Set rows of a table."""


class StateStore(Protocol):
    """The optimizer of the tables."""

    @property
    def tables(self) -> Mapping[str, object]:
        """The tables that it updates, by name; frozen ones are not among them."""

    def state_shapes(self, table: str) -> Mapping[str, tuple[int, ...]]:
        """(width,) of each state in a whole row, and () of a scalar of the table."""

    def import_state(self, table: str, row_ids: AnyArray, states: Mapping[str, AnyArray]) -> None:
        """Set the states of rows of a table, and its scalars."""


def own_pieces(saved: TableRows, table: Table) -> Iterator[TableRows]:
    """What this process holds of a saved table, some rows at a time; one, maybe empty, at least."""
    height = table.spec.num_rows  # a shard may be made of nothing, beyond the end
    for first, stop in table.row_ranges() or [(0, 0)]:  # the state of the table as a whole is everyone's
        yield from saved.pieces((min(first, height), min(stop, height)))
