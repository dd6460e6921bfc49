"""Embedding tables as their optimizers see them: what an engine of any kind has to offer.

optimizer ──▶ SparseTable: make room for states, read and write them, catch up with missed updates
    │              │ engine
    └──────▶ SparseEngine: the gradients that wait for `step()`, and `update`, which applies them
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt
from torch import Tensor

from recgrad.optim.sparse.history import History

Array = npt.NDArray[Any]


class Update(NamedTuple):
    """How one table is to be updated: what an optimizer tells the engine.

    Attributes:
        table: the name of the engine's table.
        rule: the compiled rule.
        hyperparameters: what the rule gets as h.
        limit: each element of an output's gradient is clamped to ± this before rows are summed.
        l2: times the weight is added to the gradient.
        decoupled: times the weight is taken off the weight.
        step: the number of this update of the table, from 1.
        settings: the param group of the table as it is, with all hyperparameters by name.
    """

    table: str
    rule: Any
    hyperparameters: tuple[float, ...]
    limit: float
    l2: float
    decoupled: float
    step: int
    settings: dict[str, Any]


class SparseTable(ABC):
    """A table that an optimizer updates; of several processes, as much of it as this one holds.

    Attributes:
        name: unique in its engine.
        dim: the width of a row of the whole table.
        trainable: a frozen table has no optimizer.
        handle: an empty tensor that stands for the table in an optimizer's param_groups.
        engine: what keeps its gradients.
        history: what its rows miss while no batch touches them; None if they stay as they are.
        by_columns: its rows are cut, and the pieces may lie in several processes.
        divides_gradients: what it gets are the gradients of ids, of bags whose mean is taken or that are
            weighted.
        clamped: its optimizer clamps the gradient of each output before those of a row are summed.
    """

    name: str
    dim: int
    trainable: bool
    handle: Tensor
    engine: SparseEngine
    history: History | None = None
    by_columns: bool = False
    divides_gradients: bool = False
    clamped: bool = False

    @abstractmethod
    def set_states(self, states: Sequence[tuple[str, int, float]]) -> None:
        """Make room for an optimizer's states (name, width, initial value); drops those there were."""

    @abstractmethod
    def follow(self, history: History | None) -> None:
        """From now on rows that no batch touches move on by this history; None for rows that stay."""

    @abstractmethod
    def row_states(self) -> tuple[Array, dict[str, Array]]:
        """The touched rows that this process holds, and their states by name, each [rows, width]."""

    @abstractmethod
    def import_states(self, rows: Array, values: dict[str, Array]) -> None:
        """Set the states of rows; untouched ones come into being, those of other processes are left out."""


class SparseEngine(ABC):
    """Tables with the gradients that backward passes have left for them.

    Methods take tables by name. With several processes all of them make the same calls.
    """

    tables: Mapping[str, SparseTable]

    @abstractmethod
    def pending_tables(self) -> set[str]:
        """The tables that have gradients waiting, the same in every process."""

    @abstractmethod
    def clear_gradients(self, names: set[str] | None = None) -> None:
        """Drop the waiting gradients, of all tables or of some."""

    @abstractmethod
    def update(self, updates: Sequence[Update]) -> None:
        """Apply optimizers' rules to the waiting gradients of their tables, then drop these."""

    @abstractmethod
    def scale_gradients(self, names: set[str], factor: float) -> None:
        """Multiply the waiting gradients of some tables."""

    @abstractmethod
    def finite_gradients(self, names: set[str]) -> bool:
        """Whether this process's waiting gradients of some tables are free of infinities and NaN."""

    @abstractmethod
    def summed_gradients(self, limits: dict[str, float], *, own: bool = False) -> list[Tensor]:
        """Replace the waiting gradients of some tables by their sums per row.

        Args:
            limits: by table, the largest element that an output's gradient may have before it is summed.
            own: leave out what another process has too, so that over all of them each row is there once.

        Returns:
            the sums, [rows, dim] each; changing them changes what will be applied.
        """


Tables = SparseEngine | Iterable[SparseTable] | Iterable[dict[str, Any]]
"""What an optimizer is made of: an engine, tables of one, or param groups with tables under "params"."""


class Moved(NamedTuple):
    """A table that an update is done with, and its param group."""

    table: SparseTable
    group: dict[str, Any]


def advance(moved: Sequence[Moved], tables: Iterable[SparseTable]) -> None:
    """Add an update to the histories of the tables that it moved; those that it left out keep theirs."""
    users: dict[int, int] = {}
    for table in tables:
        users[id(table.history)] = users.get(id(table.history), 0) + 1
    together: dict[tuple[int, int], list[Moved]] = {}
    for own in moved:
        together.setdefault((id(own.table.history), id(own.group)), []).append(own)
    for (shared, _), members in together.items():
        history, group = members[0].table.history, members[0].group
        assert history is not None
        if (history.beta2, history.eps) != (group["beta2"], group["eps"]):
            raise ValueError("beta2 and eps may not change in training where lazy is false")
        if users[shared] != len(members):
            history = history.copy()
            for member in members:
                member.table.follow(history)
        history.advance(group["lr"], group["beta1"])


def adopt(table: SparseTable, tables: Iterable[SparseTable], count: int, steps: Array, missed: Array) -> None:
    """Give a table the history of a checkpoint's rows, shared with tables whose own does not differ."""
    own = table.history
    assert own is not None
    others = (other.history for other in tables if other.history is not None)
    for history in (own, *others):
        same = (history.count, history.beta2, history.eps) == (count, own.beta2, own.eps)
        if same and history.agrees(steps, missed):
            break
    else:
        history = own.copy() if own.count == count else History(own.beta2, own.eps, count)
    history.take(steps, missed)
    if history is not own:
        table.follow(history)
