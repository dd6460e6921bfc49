"""The local engine: all embedding tables of a model in one process, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.embedding.engine import EmbeddedIds, EmbeddingEngine, Ids, IdsLike, PreparedIds, check_specs
from recgrad.embedding.local.group import DimGroup
from recgrad.embedding.local.inputs import Inputs
from recgrad.embedding.local.lookup import lookup_tasks
from recgrad.embedding.local.plan import arrange_task, plan_tasks
from recgrad.embedding.local.row_copy import kernels as copy_kernels
from recgrad.embedding.local.staging import STAGE_SIGNATURE, stage, unstage
from recgrad.embedding.local.table import Table
from recgrad.embedding.local.update import update_function
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.errors import nearest
from recgrad.kernels.compile import Wanted
from recgrad.optim.sparse import SparseOptimizer
from recgrad.optim.sparse.tables import Update

__all__ = ["Ids", "LocalEngine"]


def table_kernels(optimizer: SparseOptimizer | None) -> list[Wanted]:
    """What lookups, and updates by an optimizer, need compiled, whatever the tables; in the order of need."""
    wanted = [Wanted(lookup_tasks), Wanted(arrange_task), Wanted(plan_tasks)]
    rules = [] if optimizer is None else optimizer.rules()
    wanted += [Wanted(update_function, rule) for rule in rules]
    wanted += [Wanted(function, None, STAGE_SIGNATURE) for function in (stage, unstage)] if rules else []
    return wanted + (copy_kernels() if rules else [])


class LocalEngine(EmbeddingEngine):
    """Embedding tables and the lookups into them.

    A forward pass writes nothing: rows come into being when an optimizer first updates them,
    and until then their values are drawn from (seed, table, row). Backward keeps the gradients
    of the lookups' outputs until the optimizer's `step()` sums them by row, or `zero_grad()`
    drops them. Tables are not module parameters: optimizers take `engine.tables`, checkpoints
    `export_table` and `import_table`.

    Args:
        tables: the tables, by unique names.
        lookups: the uses of them.
        keys: order of the features in the `ids` of a forward call.
        sequence_keys: order of the features in its `sequences`.
        seed: of the initial values.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        lookups: Sequence[LookupSpec],
        *,
        keys: Sequence[str],
        sequence_keys: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        super().__init__()
        specs = {spec.name: spec for spec in tables}
        check_specs(tables, lookups, keys, sequence_keys)
        self.lookups = {spec.name: spec for spec in lookups}
        self.keys, self.sequence_keys = tuple(keys), tuple(sequence_keys)
        self.groups = {
            dim: DimGroup(
                [spec for spec in tables if spec.dim == dim],
                [spec for spec in lookups if specs[spec.table].dim == dim],
                self.keys,
                self.sequence_keys,
                seed,
                self,
            )
            for dim in dict.fromkeys(spec.dim for spec in tables)
        }
        by_name = {table.name: table for group in self.groups.values() for table in group.tables}
        self.tables: dict[str, Table] = {spec.name: by_name[spec.name] for spec in tables}
        self._anchor = torch.empty(0, requires_grad=True)  # makes outputs part of the autograd graph
        self._forwards = 0
        self._runs: dict[tuple[str, ...], list[tuple[int, int, int]]] = {}

    def prepare(self, ids: IdsLike | None, sequences: IdsLike | None = None) -> Prepared:
        """Where the ids lie; the lookup itself finds one that is outside its table."""
        pooled = None if ids is None else Inputs.of(ids, self.keys, "ids")
        positions = None if sequences is None else Inputs.of(sequences, self.sequence_keys, "sequences")
        return Prepared(self, pooled, positions)

    def kernels(self, optimizer: SparseOptimizer | None) -> list[Wanted]:
        """What the first steps with an optimizer will need compiled, in the order of need."""
        return table_kernels(optimizer)

    def next_forward(self) -> int:
        """Count a forward pass; gradients are summed in this order."""
        self._forwards += 1
        return self._forwards

    def table(self, name: str) -> Table:
        """A table by name."""
        super().table(name)
        return self.tables[name]

    def table_pieces(
        self, name: str, chunk_rows: int = 1 << 18
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
        """Touched rows of a table in ascending order with their weights, some at a time."""
        return self.table(name).pieces(chunk_rows)

    def export_table(self, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The numbers of the touched rows, ascending, and their weights as float32 [rows, dim]."""
        table = self.table(name)
        pieces = list(table.pieces())
        if not pieces:
            return np.empty(0, np.int64), np.empty((0, table.spec.dim), np.float32)
        return np.concatenate([rows for rows, _ in pieces]), np.concatenate([w for _, w in pieces])

    def group_of(self, name: str, sequence: bool) -> DimGroup:
        """The tables of the dim that a lookup has."""
        spec = self.lookups.get(name)
        if spec is None or spec.sequence != sequence:
            known = [key for key, spec in self.lookups.items() if spec.sequence == sequence]
            kind = "sequence" if sequence else "pooled"
            raise KeyError(f"no {kind} lookup '{name}'{nearest(name, known)}")
        return self.groups[self.tables[spec.table].spec.dim]

    def runs(self, names: tuple[str, ...]) -> list[tuple[int, int, int]]:
        """Where these pooled outputs lie: (dim, first column, one past the last), neighbours together."""
        if names not in self._runs:
            if not names:
                raise ValueError("pooled needs at least one lookup name, got none")
            runs: list[tuple[int, int, int]] = []
            for name in names:
                group = self.group_of(name, sequence=False)
                dim, column = group.dim, group.columns[name]
                if runs and (runs[-1][0], runs[-1][2]) == (dim, column):
                    runs[-1] = (dim, runs[-1][1], column + 1)
                else:
                    runs.append((dim, column, column + 1))
            self._runs[names] = runs
        return self._runs[names]

    def leave_room(self, names: Sequence[str], columns: int) -> None:
        """Where the outputs begin with the first column of a dim's block."""
        runs = self.runs(tuple(names))
        if len(runs) == 1 and runs[0][1] == 0:
            self.groups[runs[0][0]].leave_room(columns)

    # --- what optimizers ask for ---

    def pending_tables(self) -> set[str]:
        """Names of the tables that have gradients waiting."""
        return {name for group in self.groups.values() for name in group.pending_tables()}

    def clear_gradients(self, names: set[str] | None = None) -> None:
        """Drop the waiting gradients, of all tables or of some."""
        for group in self.groups.values():
            group.clear(names)

    def update(self, updates: Sequence[Update]) -> None:
        """Apply optimizers' rules to the waiting gradients of their tables, then drop these."""
        together: dict[tuple[int, Any], list[Update]] = {}
        for update in updates:
            together.setdefault((self.tables[update.table].dim, update.rule), []).append(update)
        for (dim, _), members in together.items():
            by_position = {self.tables[update.table].position: update for update in members}
            self.groups[dim].update(by_position)
            self.groups[dim].drop(frozenset(by_position))

    def scale_gradients(self, names: set[str], factor: float) -> None:
        """Multiply the waiting gradients of some tables."""
        for group in self.groups.values():
            group.scale(names, factor)

    def finite_gradients(self, names: set[str]) -> bool:
        """Whether the waiting gradients of some tables are free of infinities and NaN."""
        return all(group.finite(names) for group in self.groups.values())

    def summed_gradients(self, limits: dict[str, float], *, own: bool = False) -> list[Tensor]:
        """Replace the waiting gradients of some tables by their sums per row.

        Args:
            limits: by table, the largest element that a gradient may have before it is summed.
            own: leave out what another process has too; here there is none.

        Returns:
            the sums, one [rows, dim] tensor per dim; changing them changes what will be applied.
        """
        sums = []
        for group in self.groups.values():
            members = {i: limits[t.name] for i, t in enumerate(group.tables) if t.name in limits}
            if members:
                sums.append(group.reduce(members))
        return sums

    def extra_repr(self) -> str:
        """Tables and lookups in numbers."""
        return f"tables={len(self.tables)}, lookups={len(self.lookups)}, dims={sorted(self.groups)}"


class Prepared(PreparedIds):
    """Ids that are looked up where they are."""

    def __init__(self, engine: LocalEngine, ids: Inputs | None, sequences: Inputs | None) -> None:
        self._engine, self._ids, self._sequences = engine, ids, sequences

    def look_up(self) -> Embedded:
        """The embeddings of now."""
        return Embedded(self._engine, self._ids, self._sequences, self._engine.next_forward())


class Embedded(EmbeddedIds):
    """What one forward pass looked up; tensors are taken from it by name."""

    def __init__(
        self, engine: LocalEngine, ids: Inputs | None, sequences: Inputs | None, number: int
    ) -> None:
        self._engine = engine
        self._number = number
        self._taken = 0
        self._results = {
            dim: group.lookup(ids, sequences, engine.training) for dim, group in engine.groups.items()
        }

    def pooled(self, names: Sequence[str]) -> Tensor:
        """The outputs of these lookups side by side, [rows, sum of dims].

        A view where they lie side by side in one dim's block, else a copy.
        """
        runs = self._engine.runs(tuple(names))
        parts = [self._take(dim, first, last) for dim, first, last in runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def sequence(self, name: str) -> Tensor:
        """The output of a sequence lookup, [positions, dim]."""
        group = self._engine.group_of(name, sequence=True)
        column = group.columns[name]
        return self._take(group.dim, column, column + 1)

    def take_room(self, names: Sequence[str]) -> int:
        """Before the first column of a dim's block, once."""
        (dim, first, _), *others = self._engine.runs(tuple(names))
        if others or first > 0:
            return 0
        result = self._results[dim]
        room, result.room = result.room, 0
        return room

    def _take(self, dim: int, first: int, last: int) -> Tensor:
        group, result = self._engine.groups[dim], self._results[dim]
        output = result.output(first, last)
        if not torch.is_grad_enabled() or not group.span(first, last).tables:
            return output
        self._taken += 1
        taken: Tensor = _Take.apply(  # type: ignore[no-untyped-call]
            self._engine._anchor, group, result, output, first, last, (self._number, self._taken)
        )
        return taken


class _Take(torch.autograd.Function):
    """Hands out part of a block; its backward notes where the gradient lies, without a copy."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *arguments: Any) -> Tensor:
        group, result, output, first, last, order = arguments
        ctx.take = (group, result, first, last, order)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        group, result, first, last, order = ctx.take
        group.keep(result, first, last, order, gradients[0])
        return (None,) * 7
