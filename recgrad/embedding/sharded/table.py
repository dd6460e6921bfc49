"""A table that is spread over ranks, as the optimizer and checkpoints of one rank see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchrec.distributed.types import ShardingType

from recgrad.embedding.check import check_rows
from recgrad.embedding.local.table import TableMemory, TablePart
from recgrad.embedding.sharded.shard import ShardTable, place_of
from recgrad.embedding.spec import TableSpec
from recgrad.errors import CheckpointError
from recgrad.optim.sparse.history import History

Array = npt.NDArray[Any]


class ShardedTable:
    """The shards of one table on this rank, none or some, under the table's own row numbers.

    Attributes:
        spec: the whole table.
        shards: of this rank's kernels; each knows its place in the whole.
        replicated: this rank's one shard is a copy of the whole table, as every rank has it.
        divides_gradients: what it gets are the gradients of ids, of bags whose mean is taken or that are
            weighted.
        by_columns: its rows are cut, and the pieces may lie on several ranks.
        handle: an empty tensor that stands for the table in an optimizer's param_groups.
    """

    def __init__(
        self, spec: TableSpec, shards: Sequence[ShardTable], sharding_type: str, engine: Any
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.shards = tuple(shards)
        self.replicated = sharding_type == ShardingType.DATA_PARALLEL.value
        self.by_columns = sharding_type == ShardingType.COLUMN_WISE.value
        self.engine = engine
        self._history: History | None = None
        self.divides_gradients = spec.name in engine.features.divided
        self.handle = torch.empty(0, requires_grad=spec.trainable)

    def set_states(self, states: Sequence[tuple[str, int, float]]) -> None:
        """Make room for an optimizer's states (name, width in the whole table, initial value)."""
        self._history = None
        for shard in self.shards:
            own = [(name, self._width(shard, width), initial) for name, width, initial in states]
            shard.set_states(own)

    @property
    def history(self) -> History | None:
        """What rows miss while no batch touches them; see `Table.follow`."""
        return self._history

    def follow(self, history: History) -> None:
        """From now on rows that no batch touches move on by this history, on all shards."""
        self._history = history
        for shard in self.shards:
            shard.follow(history)

    def _width(self, shard: ShardTable, width: int) -> int:
        return shard.spec.dim if width == self.spec.dim else width

    def row_ranges(self) -> list[tuple[int, int]]:
        """The rows of the whole table that this rank holds, also in part."""
        firsts = ((place_of(shard).first_row, shard.spec.num_rows) for shard in self.shards)
        return sorted({(first, first + count) for first, count in firsts})

    def parts(self) -> Iterator[TablePart]:
        """What this rank has to save: its shards; of copies, the first rank's."""
        if self.replicated and self.engine.rank:
            return
        for shard in self.shards:
            place = place_of(shard)
            for part in shard.parts():
                yield part._replace(row_ids=part.row_ids + place.first_row, first_column=place.first_column)

    def write(self, rows: Array, weights: Array) -> None:
        """Set rows of the whole table; those of other ranks are passed over."""
        rows, weights = np.asarray(rows, np.int64), np.asarray(weights, np.float32)
        check_rows(self.spec, rows)
        for shard, own, columns in self._own(rows):
            shard.write(rows[own] - place_of(shard).first_row, weights[own][:, columns])

    def row_states(self) -> tuple[Array, dict[str, Array]]:
        """Touched rows that this rank holds, copies too, and their states by name, each [rows, width]."""
        if self.by_columns:
            raise CheckpointError(
                f"table '{self.name}': its rows are spread by columns, so no rank has the states of one; "
                "save them with `parts()`, or use sharding_types row_wise or table_wise"
            )
        own = [(place_of(shard).first_row, part) for shard in self.shards for part in shard.parts()]
        if not own:
            return np.empty(0, np.int64), {}
        rows = np.concatenate([part.row_ids + first for first, part in own])
        names = own[0][1].states
        return rows, {name: np.concatenate([part.states[name] for _, part in own]) for name in names}

    def import_states(self, rows: Array, values: dict[str, Array]) -> None:
        """Set the states of rows; those of other ranks are passed over."""
        rows = np.asarray(rows, np.int64)
        check_rows(self.spec, rows)
        for shard, own, columns in self._own(rows):
            cut = {}
            for name, value in values.items():
                state = np.asarray(value)[own]
                cut[name] = state[:, columns] if state.shape[1] == self.spec.dim else state
            shard.import_states(rows[own] - place_of(shard).first_row, cut)

    def _own(self, rows: Array) -> Iterator[tuple[ShardTable, Array, slice]]:
        """Each shard, which of the rows it holds, and which of their columns."""
        for shard in self.shards:
            place = place_of(shard)
            own = (rows >= place.first_row) & (rows < place.first_row + shard.spec.num_rows)
            yield shard, own, slice(place.first_column, place.first_column + shard.spec.dim)

    def memory(self) -> TableMemory:
        """Touched rows and what they cost on this rank."""
        own = [shard.memory() for shard in self.shards]
        rows = max((memory.rows for memory in own), default=0)
        weights, states, index = (
            sum(getattr(memory, f"{what}_bytes") for memory in own) for what in ("weight", "state", "index")
        )
        return TableMemory(self.name, rows, weights, states, index)
