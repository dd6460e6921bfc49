"""The shards that one rank holds, and what the sharded engine needs of their kernels, whoever wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy.typing as npt
from torch import Tensor
from torchrec.distributed.embedding_types import ShardedEmbeddingTable

from recgrad.embedding.local.table import TableMemory, TablePart
from recgrad.embedding.sharded.names import table_name
from recgrad.embedding.spec import Shard, TableSpec
from recgrad.optim.sparse.history import History
from recgrad.optim.sparse.optimizer import Update

Array = npt.NDArray[Any]


class ShardTable(Protocol):
    """A shard: rows and columns of a table, numbered from 0; `spec.shard` is its place in the whole."""

    @property
    def spec(self) -> TableSpec: ...
    @property
    def name(self) -> str: ...
    def parts(self) -> Iterator[TablePart]:
        """Touched rows with their states."""

    def write(self, rows: Array, weights: Array) -> None:
        """Set rows."""

    def set_states(self, states: Sequence[tuple[str, int, float]]) -> None:
        """Make room for an optimizer's states (name, width, initial value)."""

    def import_states(self, rows: Array, values: dict[str, Array]) -> None:
        """Set the states of rows."""

    def follow(self, history: History | None) -> None:
        """Let rows that no batch touches move on."""

    def memory(self) -> TableMemory:
        """Touched rows and what they cost."""


class ShardEngine(Protocol):
    """The shards of a kernel and the gradients that wait for them, by names of shards."""

    @property
    def tables(self) -> Mapping[str, ShardTable]: ...
    def clear_gradients(self, names: set[str] | None = None) -> None:
        """Drop waiting gradients."""

    def update(self, updates: Sequence[Update]) -> None:
        """Apply optimizers' rules to the waiting gradients of their shards, then drop these."""

    def scale_gradients(self, names: set[str], factor: float) -> None:
        """Multiply waiting gradients."""

    def finite_gradients(self, names: set[str]) -> bool:
        """Whether waiting gradients are free of infinities and NaN."""

    def summed_gradients(self, limits: dict[str, float]) -> list[Tensor]:
        """Replace waiting gradients by their sums per row, clamped to the limits before."""


class Kernel(Protocol):
    """A compute kernel of TorchRec: looks up the ids that come to this rank.

    Attributes:
        engine: what it looks up in.
        replicated: every rank holds these tables whole.
    """

    @property
    def engine(self) -> ShardEngine: ...
    @property
    def replicated(self) -> bool: ...


def place_of(shard: ShardTable) -> Shard:
    """Where a shard lies in the whole table."""
    assert shard.spec.shard is not None
    return shard.spec.shard


def shard_spec(table: ShardedEmbeddingTable, index: int, specs: Mapping[str, TableSpec]) -> TableSpec:
    """A shard as a table of its rank; column shards of a table may meet on a rank."""
    whole = specs[table_name(table.name)]
    offsets = (0, 0) if table.local_metadata is None else tuple(table.local_metadata.shard_offsets)
    return replace(
        whole,
        name=f"{whole.name}/{index}",
        num_rows=max(table.local_rows, 1),
        dim=table.local_cols,
        shard=Shard(whole.name, whole.num_rows, whole.dim, *offsets),
    )
