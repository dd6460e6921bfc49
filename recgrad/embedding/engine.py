"""What an embedding engine is, whichever it is.

    model      ──▶ EmbeddingEngine: prepare(ids) ─▶ PreparedIds: send, look_up ─▶ EmbeddedIds: tensors by name
    optimizer  ──▶ SparseEngine, SparseTable (recgrad/optim/sparse/tables.py): waiting gradients, states
    checkpoint ──▶ EmbeddingTable: parts, write, import_states, row_ranges

An engine is a module without parameters: its tables belong to sparse optimizers and to checkpoints. A further
engine, or a further kind of table, subclasses what is here and is then known to all three.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.errors import nearest
from recgrad.kernels.compile import Wanted
from recgrad.optim.sparse import SparseOptimizer
from recgrad.optim.sparse.tables import SparseEngine, SparseTable

Array = npt.NDArray[Any]


# --- ids and their embeddings ---


class IdsLike(Protocol):
    """Ids of several features, feature after feature; see `Ids`, and `KeyedJagged` of a batch."""

    @property
    def values(self) -> Tensor: ...
    @property
    def lengths(self) -> Tensor: ...
    @property
    def bag_counts(self) -> Sequence[int]: ...
    @property
    def weights(self) -> Tensor | None: ...
    @property
    def single(self) -> bool: ...


class Ids(NamedTuple):
    """Ids of several features, feature after feature, as `KeyedJagged` lays them out.

    Attributes:
        values: int64 [ids of key 0, ids of key 1, …].
        lengths: int32 [bags of key 0, bags of key 1, …].
        bag_counts: the number of bags of each key.
        weights: float32, one for each id, or None.
        single: every bag holds exactly one id.
    """

    values: Tensor
    lengths: Tensor
    bag_counts: Sequence[int]
    weights: Tensor | None = None
    single: bool = False


class EmbeddedIds(ABC):
    """What one forward pass looked up; tensors are taken from it by name."""

    @abstractmethod
    def pooled(self, names: Sequence[str]) -> Tensor:
        """The outputs of these lookups side by side, [rows, sum of dims]."""

    @abstractmethod
    def sequence(self, name: str) -> Tensor:
        """The output of a sequence lookup, [positions, dim]."""

    def take_room(self, names: Sequence[str]) -> int:
        """How many columns of memory before the rows of `pooled(names)` are the caller's, who asks once.

        Some where `leave_room` of the engine was told of these names, if it could.
        """
        return 0


class PreparedIds(ABC):
    """The ids of a batch on their way into an engine; they may leave long before they are looked up."""

    def send(self) -> None:  # noqa: B027 (there may be no other process)
        """Begin to send them to the processes that hold their rows, which all are to do; `look_up` would.

        They travel in the background. Weights may change meanwhile: ids alone are sent.
        """

    def arrive(self) -> None:  # noqa: B027
        """Wait for what was sent, where it will not be looked up: no process may leave others waiting."""

    @abstractmethod
    def look_up(self) -> EmbeddedIds:
        """The embeddings of now; once.

        Raises:
            DataError: an id is outside its table.
        """


# --- tables ---


@dataclass(frozen=True)
class TableMemory:
    """What a table costs: `rows` touched rows, bytes of weights, of states, and of the index."""

    name: str
    rows: int
    weight_bytes: int
    state_bytes: int
    index_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weight_bytes + self.state_bytes + self.index_bytes


class TablePart(NamedTuple):
    """Touched rows of a table, or of some of its columns, as checkpoints keep them.

    Attributes:
        first_column: where the columns begin in the whole table.
        row_ids: ascending.
        weights: float32 [rows, columns].
        states: of the optimizer, each [rows, width].
    """

    first_column: int
    row_ids: Array
    weights: Array
    states: dict[str, Array]


class EmbeddingTable(SparseTable):
    """A table of an engine: what its optimizer sees of it, and what checkpoints read and write.

    Rows go in and out with the numbers that they have in the whole table, and go in at full width. A table of
    which this process holds a part takes what is its own and leaves the rest.

    Attributes:
        spec: what was asked for.
    """

    spec: TableSpec

    def __init__(self, spec: TableSpec, engine: SparseEngine) -> None:
        self.spec = spec
        self.name, self.dim, self.trainable = spec.name, spec.dim, spec.trainable
        self.engine = engine
        self.handle = torch.empty(0, requires_grad=spec.trainable)

    def row_ranges(self) -> list[tuple[int, int]]:
        """The rows that this process holds, also in part: (first, one past the last)."""
        return [(0, self.spec.num_rows)]

    @abstractmethod
    def parts(self) -> Iterator[TablePart]:
        """All that was learned, as far as this process has to save it."""

    def begin_copy(self) -> Callable[[], list[TablePart]]:
        """`parts` of this moment, which whoever calls what this gives gets, whenever and in whatever thread.

        Here they are copied at once; a table that can copies them while training goes on.
        """
        parts = list(self.parts())
        return lambda: parts

    def pieces_here(self) -> list[TablePiece]:
        """What this process has of it to tell others, copies once: tables of its own, and their places."""
        return [TablePiece(self)]

    @abstractmethod
    def write(self, rows: Array, weights: Array) -> None:
        """Set rows."""

    @abstractmethod
    def memory(self) -> TableMemory:
        """Touched rows and what they cost in this process."""

    def row_states(self) -> tuple[Array, dict[str, Array]]:
        """The touched rows that this process holds, and their states by name, each [rows, width]."""
        return joined_states(list(self.parts()))


class TablePiece(NamedTuple):
    """A table of this process that is a part of another, or that one itself.

    Attributes:
        table: the part.
        first_row, first_column: where it begins in the whole.
    """

    table: EmbeddingTable
    first_row: int = 0
    first_column: int = 0


@dataclass(frozen=True)
class Turnover:
    """What has come and gone in a table whose rows belong to ids as they come, since the run began.

    Attributes:
        live: ids that have a row now.
        capacity: ids that may have one.
        admitted, evicted, expired: ids that got a row, lost it to others, lost it by age.
        turned_away: ids that were seen and left without a row, once for each round.
    """

    live: int
    capacity: int
    admitted: int
    evicted: int
    expired: int
    turned_away: int

    def plus(self, other: Turnover) -> Turnover:
        """Of two parts of a table."""
        return Turnover(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


NO_TURNOVER = Turnover(0, 0, 0, 0, 0, 0)
"""Of a table that is elsewhere."""


class LivingRows(ABC):
    """A table whose rows belong to ids as they come; checkpoints number its rows by these."""

    spec: TableSpec

    @abstractmethod
    def turnover(self) -> Turnover:
        """What has come and gone, as far as this process knows."""

    @abstractmethod
    def export_scores(self) -> dict[str, Array]:
        """All that rows do not hold: ids and their marks, what waits to be admitted, the pass.

        Nothing where another process has the table.
        """

    def begin_scores(self) -> Callable[[], dict[str, Array]]:
        """`export_scores` of this moment, for any thread at any time."""
        scores = self.export_scores()
        return lambda: scores

    @abstractmethod
    def import_scores(self, state: Mapping[str, Array]) -> None:
        """Take over the ids of a checkpoint, before its rows; where there is less room, the best."""

    @abstractmethod
    def begin_with(self, ids: Array, weights: Array) -> None:
        """Rows that ids have before training; the first to leave until they are seen."""

    @abstractmethod
    def every_row(self) -> Iterator[tuple[Array, Array]]:
        """All ids with a row, written or not, ascending, and their values, some at a time."""

    @abstractmethod
    def stand_ins(self) -> Array:
        """What ids without a row read as in evaluation, [rows, dim]; several are chosen from by hash."""


def joined_states(parts: Sequence[TablePart]) -> tuple[Array, dict[str, Array]]:
    """The rows of all parts, and their states by name."""
    if not parts:
        return np.empty(0, np.int64), {}
    rows = np.concatenate([part.row_ids for part in parts])
    return rows, {name: np.concatenate([part.states[name] for part in parts]) for name in parts[0].states}


# --- engines ---


class TableEngine(SparseEngine):
    """Tables with their waiting gradients, whoever looks them up."""

    tables: Mapping[str, EmbeddingTable]


class EmbeddingEngine(nn.Module, TableEngine):
    """Embedding tables, and the lookups into them.

    Attributes:
        tables: by name.
        lookups: the uses of them, by name.
        keys: order of the features in the `ids` of a forward call.
        sequence_keys: order of the features in its `sequences`.
    """

    lookups: Mapping[str, LookupSpec]
    keys: tuple[str, ...]
    sequence_keys: tuple[str, ...]

    @property
    def sends_ahead(self) -> bool:
        """Whether it pays to send ids before they are needed: there are other processes."""
        return False

    @abstractmethod
    def prepare(self, ids: IdsLike | None, sequences: IdsLike | None = None) -> PreparedIds:
        """The ids of a batch, on their way to be looked up. Other processes are not asked.

        Raises:
            DataError: an id is outside its table, and the engine can tell already.
        """

    def forward(self, ids: IdsLike | None, sequences: IdsLike | None = None) -> EmbeddedIds:
        """Look up every lookup's bags.

        Raises:
            DataError: an id is outside its table.
        """
        return self.prepare(ids, sequences).look_up()

    def sums_gradients(self, name: str) -> bool:
        """Whether of the gradients of a lookup's output only their sum by id matters."""
        return not self.tables[self.lookups[name].table].clamped

    def leave_room(self, names: Sequence[str], columns: int) -> None:
        """Leave memory for so many columns before the rows of `pooled(names)`, if that is possible."""

    def kernels(self, optimizer: SparseOptimizer | None) -> list[Wanted]:
        """What the first steps with an optimizer will need compiled, where that is known."""
        return []

    def table(self, name: str) -> EmbeddingTable:
        """A table by name."""
        if name not in self.tables:
            raise KeyError(f"no table '{name}'{nearest(name, self.tables)}")
        return self.tables[name]

    def living_tables(self) -> dict[str, LivingRows]:
        """Tables whose rows belong to ids as they come, by name."""
        return {name: table for name, table in self.tables.items() if isinstance(table, LivingRows)}

    def memory(self) -> list[TableMemory]:
        """Touched rows, and bytes of weights, state and index, by table, of this process alone."""
        return [table.memory() for table in self.tables.values()]

    @abstractmethod
    def export_table(self, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The touched rows that this process holds whole, and their weights as float32 [rows, dim]."""

    def import_table(self, name: str, row_ids: npt.ArrayLike, weights: npt.ArrayLike) -> None:
        """Set rows of a table, such as `export_table` gave; those of other processes are left out."""
        self.table(name).write(np.asarray(row_ids, np.int64), np.asarray(weights, np.float32))


EngineMaker = Callable[..., EmbeddingEngine]
"""Makes an engine from (tables, lookups, keys=, sequence_keys=, seed=)."""


def check_specs(
    tables: Sequence[TableSpec],
    lookups: Sequence[LookupSpec],
    keys: Sequence[str],
    sequence_keys: Sequence[str],
) -> None:
    """Refuse tables and lookups that do not fit together, with ValueError."""
    names = [spec.name for spec in tables]
    if len(set(names)) != len(names):
        raise ValueError(f"table names must be unique, got {names}")
    if len({spec.name for spec in lookups}) != len(lookups):
        raise ValueError(f"lookup names must be unique, got {[spec.name for spec in lookups]}")
    for spec in lookups:
        if spec.table not in names:
            raise ValueError(f"lookup '{spec.name}': no table '{spec.table}'{nearest(spec.table, names)}")
        known = sequence_keys if spec.sequence else keys
        if spec.key not in known:
            raise ValueError(f"lookup '{spec.name}': no key '{spec.key}'{nearest(spec.key, known)}")
        if spec.pooling not in ("sum", "mean"):
            raise ValueError(f"pooling must be 'sum' or 'mean', got '{spec.pooling}' for '{spec.name}'")
