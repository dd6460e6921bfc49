"""A table that is spread over ranks, as the optimizer and checkpoints of one rank see it, and its shards.

A shard is a table of its rank, named "table/number", whose rows and columns count from 0; `spec.shard` is its
place in the whole. Who wrote its kernels, we or FBGEMM, makes no difference here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
from torchrec.distributed.embedding_types import ShardedEmbeddingTable
from torchrec.distributed.types import ShardingType

from recgrad.embedding.check import check_rows
from recgrad.embedding.engine import (
    EmbeddingTable,
    TableEngine,
    TableMemory,
    TablePart,
    TablePiece,
    joined_states,
)
from recgrad.embedding.spec import Shard, TableSpec
from recgrad.errors import CheckpointError
from recgrad.optim.sparse.history import History
from recgrad.optim.sparse.tables import SparseEngine

Array = npt.NDArray[Any]
_PREFIX = "table:"  # names of TorchRec's modules may neither hold a dot nor be a method's


def module_name(table: str) -> str:
    """What TorchRec calls a table."""
    return _PREFIX + table.replace("%", "%25").replace(".", "%2E")


def table_name(module: str) -> str:
    """The table that TorchRec calls so."""
    return unquote(module.removeprefix(_PREFIX))


class Kernel(Protocol):
    """A compute kernel of TorchRec: looks up the ids that come to this rank.

    Attributes:
        engine: what it looks up in.
        replicated: every rank holds these tables whole.
    """

    @property
    def engine(self) -> TableEngine: ...
    @property
    def replicated(self) -> bool: ...


def place_of(shard: EmbeddingTable) -> Shard:
    """Where a shard lies in the whole table."""
    assert shard.spec.shard is not None
    return shard.spec.shard


def _placed(shard: EmbeddingTable, part: TablePart) -> TablePart:
    """A shard's part under the numbers that the whole table has."""
    place = place_of(shard)
    return part._replace(row_ids=part.row_ids + place.first_row, first_column=place.first_column)


def shard_spec(table: ShardedEmbeddingTable, index: int, specs: Mapping[str, TableSpec]) -> TableSpec:
    """A shard as a table of its rank; column shards of a table may meet on a rank."""
    whole = specs[table_name(table.name)]
    row, column = (0, 0) if table.local_metadata is None else tuple(table.local_metadata.shard_offsets)
    alike = [name for name, spec in specs.items() if spec.dim == whole.dim]
    return replace(
        whole,
        name=f"{whole.name}/{index}",
        # A living table lies whole on one rank, and its rows are numbered by ids.
        num_rows=max(table.local_rows, 1) if whole.living is None else whole.num_rows,
        dim=table.local_cols,
        shard=Shard(whole.name, whole.num_rows, whole.dim, row, column, alike.index(whole.name)),
    )


class ShardedTable(EmbeddingTable):
    """The shards of one table on this rank, none or some, under the table's own row numbers.

    Attributes:
        spec: the whole table.
        shards: of this rank's kernels; each knows its place in the whole.
        replicated: this rank's one shard is a copy of the whole table, as every rank has it.

    Args:
        spec, shards: see above.
        sharding_type: how the table is spread, by TorchRec's names.
        engine: what keeps the gradients.
        divides_gradients: see `SparseTable`.
        saves: whether this rank saves a table that every rank has a copy of.
    """

    def __init__(
        self,
        spec: TableSpec,
        shards: Sequence[EmbeddingTable],
        sharding_type: str,
        engine: SparseEngine,
        *,
        divides_gradients: bool,
        saves: bool,
    ) -> None:
        super().__init__(spec, engine)
        self.shards = tuple(shards)
        self.replicated = sharding_type == ShardingType.DATA_PARALLEL.value
        self.by_columns = sharding_type == ShardingType.COLUMN_WISE.value
        self.divides_gradients = divides_gradients
        self._saves = saves or not self.replicated

    def set_states(self, states: Sequence[tuple[str, int, float]]) -> None:
        """Make room for an optimizer's states (name, width in the whole table, initial value)."""
        self.history = None
        for shard in self.shards:
            own = [(name, self._width(shard, width), initial) for name, width, initial in states]
            shard.set_states(own)

    def follow(self, history: History | None) -> None:
        """From now on rows that no batch touches move on by this history, on all shards."""
        self.history = history
        for shard in self.shards:
            shard.follow(history)

    def pieces_here(self) -> list[TablePiece]:
        """What this rank has to save, and where it begins."""
        places = [(shard, place_of(shard)) for shard in self.shards if self._saves]
        return [TablePiece(shard, place.first_row, place.first_column) for shard, place in places]

    def _width(self, shard: EmbeddingTable, width: int) -> int:
        return shard.spec.dim if width == self.spec.dim else width

    def row_ranges(self) -> list[tuple[int, int]]:
        """The rows of the whole table that this rank holds, also in part."""
        firsts = ((place_of(shard).first_row, shard.spec.num_rows) for shard in self.shards)
        return sorted({(first, first + count) for first, count in firsts})

    def parts(self) -> Iterator[TablePart]:
        """What this rank has to save: its shards; of copies, the first rank's."""
        if self._saves:
            yield from self._held()

    def begin_copy(self) -> Callable[[], list[TablePart]]:
        """`parts` of this moment, for any thread at any time."""
        copies = [(shard, shard.begin_copy()) for shard in self.shards] if self._saves else []
        return lambda: [_placed(shard, part) for shard, parts in copies for part in parts()]

    def _held(self) -> Iterator[TablePart]:
        """All that this rank holds, copies too."""
        for shard in self.shards:
            for part in shard.parts():
                yield _placed(shard, part)

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
        return joined_states(list(self._held()))

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

    def _own(self, rows: Array) -> Iterator[tuple[EmbeddingTable, Array, slice]]:
        """Each shard, which of the rows it holds, and which of their columns."""
        for shard in self.shards:
            place = place_of(shard)
            own = (rows >= place.first_row) & (rows < place.first_row + shard.spec.num_rows)
            yield shard, own, slice(place.first_column, place.first_column + shard.spec.dim)

    def export(self) -> tuple[Array, Array]:
        """Touched rows that this rank holds whole, and their weights; `parts` has column shards too."""
        held = list(self._held())
        if not held or any(shard.dim != self.dim for shard in self.shards):
            return np.empty(0, np.int64), np.empty((0, self.dim), np.float32)
        return np.concatenate([part.row_ids for part in held]), np.concatenate([p.weights for p in held])

    def memory(self) -> TableMemory:
        """Touched rows and what they cost on this rank."""
        own = [shard.memory() for shard in self.shards]
        rows = max((memory.rows for memory in own), default=0)
        weights, states, index = (
            sum(getattr(memory, f"{what}_bytes") for memory in own) for what in ("weight", "state", "index")
        )
        return TableMemory(self.name, rows, weights, states, index)
