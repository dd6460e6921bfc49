"""What a stream offers its loader: rows in an order of their own, and where one stands after each of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.readers.reader import Block, Fragment, Reader, missing_column
from recgrad.errors import DataError

State = dict[str, Any]
"""Where a source stands, as JSON has it; never changed once it was given out."""


@dataclass(frozen=True)
class Run:
    """Consecutive rows of a stream.

    Attributes:
        block: the rows.
        marks: what the source needs to say where it stands after some of them.
        event_times: of each row, in seconds since 1970, nan where unknown; None where rows have no times.
    """

    block: Block
    marks: Any
    event_times: npt.NDArray[np.float64] | None = None


class Flow(ABC):
    """A stream that is being read, from a state on, by one rank. Used by one thread."""

    @abstractmethod
    def poll(self, timeout: float) -> Run | None:
        """The next rows; None where none came within `timeout` seconds, or where the flow has ended."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether no further row will be given."""

    @abstractmethod
    def after(self, state: State, run: Run, rows: int) -> State:
        """Where one stands after the first `rows` rows of a run that began at `state`."""

    def lag(self, state: State) -> float | None:
        """Messages of this rank's partitions that lie beyond a state; None where it is not known."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release connections and files."""


class Source(ABC):
    """A stream that can be read.

    Attributes:
        kind: how checkpoints call it.
        name: what is read, as checkpoints know it.
        schema: the columns.
        files: name of each partition or file, as error messages show it; may grow.
        coded_columns: text columns that come as dictionary arrays.
    """

    kind: str
    name: str
    schema: pa.Schema
    files: Sequence[str]
    coded_columns: frozenset[str] = frozenset()

    def check_columns(self, columns: Sequence[str]) -> None:
        """Raise a DataError unless every column is there."""
        for name in columns:
            if self.schema.get_field_index(name) < 0:
                raise DataError(missing_column(name, self.name, self.schema))

    @abstractmethod
    def start(self) -> State:
        """Where a new run begins."""

    @abstractmethod
    def resume(self, states: Sequence[State]) -> State:
        """Where this rank resumes, from the states of all ranks of the run before."""

    @abstractmethod
    def open(self, state: State, columns: Sequence[str]) -> Flow:
        """Read from a state on."""


class ColumnsOf(Reader):
    """A stream as far as its columns go, for what looks at these before rows come."""

    def __init__(self, source: Source) -> None:
        self.files = (source.name,)
        self.schemas = (source.schema,)
        self.identities = ()
        self._source = source

    @property
    def fragments(self) -> tuple[Fragment, ...]:  # type: ignore[override]
        """Nothing can be counted before it has come."""
        raise DataError(
            f"data: {self._source.name} is a stream, and its rows cannot be counted beforehand; give the "
            "sampler a table of items (input_path)"
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._source.schema

    def check_columns(self, columns: Sequence[str]) -> None:
        """Raise a DataError unless every column is there."""
        self._source.check_columns(columns)

    def read(self, fragment: Fragment, columns: Sequence[str]) -> Iterator[Block]:
        """There is nothing to read."""
        return iter(())
