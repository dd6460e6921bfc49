"""What a reader offers the loader: files, their fragments, and the rows of a fragment.

A fragment is the smallest run of rows that can be read without reading its neighbours: a
row group of a parquet file, a block of lines of a CSV file, a range of a table. Row counts
are known before the first row is read, so that the order of an epoch is plain arithmetic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.errors import DataError, nearest
from recgrad.registry import Registry

BLOCK_ROWS = 65536
"""About the most rows that a reader hands over at once; bounds memory when fragments are large."""
PARTITION = "partition "
"""How the names of partitions of a stream begin; their rows are told by the offset of the message."""


@dataclass(frozen=True)
class Fragment:
    """A run of rows of one file.

    Attributes:
        file: index into the reader's files.
        index: number of the fragment in its file.
        first_row: row number, in the file, of its first row.
        num_rows: the number of rows.
    """

    file: int
    index: int
    first_row: int
    num_rows: int


@dataclass(frozen=True)
class ValueRange:
    """What is known of a column's values without reading them.

    Attributes:
        low, high: no value that is not null lies outside; None where all are null.
        has_nulls: whether there may be nulls.
    """

    low: Any
    high: Any
    has_nulls: bool


@dataclass(frozen=True)
class FileIdentity:
    """What a file is, whatever its path is spelled like.

    Attributes:
        name: path below the folder that all files of the dataset share.
        size: bytes.
        digest: hash of the parquet footer, or of the whole content of a CSV file.
    """

    name: str
    size: int
    digest: str


@dataclass(frozen=True)
class BadValue:
    """A value that the reader could not parse: it is null in the block's table.

    Attributes:
        row: row of the block, from 0.
        column: the column's name, or None when the whole line is malformed.
        value: what stands there.
        reason: what is wrong with it, the same words for all values of one kind.
        remedy: what to do about it; "" says it in the words for files.
    """

    row: int
    column: str | None
    value: str
    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a fragment.

    Attributes:
        table: the columns asked for.
        bad: values that could not be parsed.
        file: index of the file; the loader sets it, as the next.
        first_row: row number, in the file, of the first row.
        numbers: row number, in the file, of each row, where they do not follow each other.
        sources: the file of each row, where they come from several.
    """

    table: pa.Table
    bad: tuple[BadValue, ...] = ()
    file: int = 0
    first_row: int = 0
    numbers: npt.NDArray[np.int64] | None = None
    sources: npt.NDArray[np.int32] | None = None

    def slice(self, start: int, stop: int) -> Block:
        """Rows `start` to `stop` of the block."""
        if start == 0 and stop == self.table.num_rows:
            return self
        bad = tuple(replace(item, row=item.row - start) for item in self.bad if start <= item.row < stop)
        numbers = None if self.numbers is None else self.numbers[start:stop]
        sources = None if self.sources is None else self.sources[start:stop]
        return Block(
            self.table.slice(start, stop - start), bad, self.file, self.first_row + start, numbers, sources
        )

    def row_files(self) -> npt.NDArray[np.int32]:
        """The file of each row."""
        return np.full(self.table.num_rows, self.file, np.int32) if self.sources is None else self.sources

    def row_numbers(self) -> npt.NDArray[np.int64]:
        """The number, in the file, of each row."""
        if self.numbers is not None:
            return self.numbers
        return np.arange(self.first_row, self.first_row + self.table.num_rows)

    def row_number(self, row: int, first_row: int) -> int:
        """The number, in the file, of a row, where the first of the block has number `first_row`."""
        return first_row + row if self.numbers is None else int(self.numbers[row])


class Reader(ABC):
    """A dataset as files, fragments and rows. Subclasses are registered by `dataset_type`.

    One of the user's own, named by custom_reader, takes its params as keyword arguments.

    Attributes:
        files: name of each file, as error messages show it, in the fixed order.
        identities: what each file is.
        schemas: the columns of each file.
        fragments: all fragments in the order of files and rows.
        coded_columns: text columns that `read` gives as dictionary arrays.
        local_paths: where those of the files lie that are on this machine's disks.
    """

    coded_columns: frozenset[str] = frozenset()
    local_paths: tuple[str, ...] = ()
    files: tuple[str, ...]
    identities: tuple[FileIdentity, ...]
    schemas: tuple[pa.Schema, ...]
    fragments: tuple[Fragment, ...]

    @abstractmethod
    def __init__(self, input_path: str, config: DataConfig) -> None: ...

    @abstractmethod
    def read(self, fragment: Fragment, columns: Sequence[str]) -> Iterator[Block]:
        """The rows of a fragment, in order, in blocks of about BLOCK_ROWS rows at most.

        Raises:
            DataError: the file cannot be read.
        """

    def ranges(self, fragment: Fragment, columns: Sequence[str]) -> dict[str, ValueRange]:
        """Between which values columns of a fragment lie, where that is known without reading it."""
        return {}

    @property
    def num_rows(self) -> int:
        """Rows of the whole dataset."""
        return sum(fragment.num_rows for fragment in self.fragments)

    @property
    def first_file(self) -> int:
        """The first file that has rows: files without any may have any columns."""
        return self.fragments[0].file if self.fragments else 0

    @property
    def schema(self) -> pa.Schema:
        """The columns of the dataset."""
        return self.schemas[self.first_file]

    def check_columns(self, columns: Sequence[str]) -> None:
        """Raise a DataError unless every file with rows has every column, with one type in all files."""
        filled = sorted({fragment.file for fragment in self.fragments})
        for name in columns:
            for file in filled:
                schema = self.schemas[file]
                if schema.get_field_index(name) < 0:
                    raise DataError(missing_column(name, self.files[file], schema))
                first = self.schema.field(name).type
                if schema.field(name).type != first:
                    raise DataError(
                        f"data: column '{name}' is {schema.field(name).type} in {self.files[file]} "
                        f"but {first} "
                        f"in {self.files[self.first_file]}; write both files with one type"
                    )


def missing_column(name: str, file: str, schema: pa.Schema) -> str:
    """The error text for a column that a file does not have."""
    names = schema.names
    if names.count(name) > 1:
        return f"data: column '{name}' occurs {names.count(name)} times in {file}; keep one"
    shown = ", ".join(names) if len(names) <= 12 else ", ".join(names[:6]) + " … " + ", ".join(names[-3:])
    return f"data: column '{name}' is not in {file} (has: {shown}){nearest(name, names)}"


READERS: Registry[type[Reader]] = Registry("reader", "recgrad.data.readers")
