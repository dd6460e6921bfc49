"""The rows of another reader of which a condition holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.arrow_columns import one_chunk, without_dictionary
from recgrad.data.readers.reader import Block, FileIdentity, Fragment, Reader
from recgrad.data.readers.where import Condition, Rows
from recgrad.data.readers.where_text import parse_where

_THREADS = 8


class FilteredReader(Reader):
    """Reads the rows of which a condition holds; those of other fragments are never read.

    Where a file says between which values a fragment's columns lie (parquet footers), fragments without
    such a row are passed over, and those with such rows alone are taken whole, unread. Of the others, the
    condition's columns are read once to count rows, and again with the rows. A row that cannot be parsed
    is kept, to be reported like any other.

    Args:
        inner: reads all rows.
        text: the condition, as `recgrad.data.readers.where` reads it.
    """

    def __init__(self, inner: Reader, text: str) -> None:
        self._inner, self._condition = inner, parse_where(text)
        self._columns = list(dict.fromkeys(self._condition.columns()))
        inner.check_columns(self._columns)
        self._condition.check(inner.schema)
        self.files, self.schemas = inner.files, inner.schemas
        self.coded_columns, self.local_paths = inner.coded_columns, inner.local_paths
        self.identities = tuple(
            FileIdentity(f"{known.name} where {text}", known.size, known.digest) for known in inner.identities
        )
        with ThreadPoolExecutor(_THREADS) as pool:
            counts = list(pool.map(self._count, inner.fragments))
        self.fragments = tuple(
            replace(fragment, num_rows=count) for fragment, count in zip(inner.fragments, counts) if count
        )
        self._whole = {(fragment.file, fragment.index): fragment for fragment in inner.fragments}

    def read(self, fragment: Fragment, columns: Sequence[str]) -> Iterator[Block]:
        """The rows of a fragment of which the condition holds."""
        whole = self._whole[fragment.file, fragment.index]
        if whole.num_rows == fragment.num_rows:
            yield from self._inner.read(whole, columns)
            return
        names = list(dict.fromkeys([*columns, *self._columns]))
        for block, mask, numbers in self._judged(whole, names):
            if mask.any():
                yield _kept(block, mask, numbers, columns)

    def _count(self, fragment: Fragment) -> int:
        ranges = self._inner.ranges(fragment, self._columns) if self._columns else {}
        outcomes = self._condition.outcomes(ranges, self._inner.schemas[fragment.file])
        if True not in outcomes:
            return 0
        if outcomes == {True}:
            return fragment.num_rows
        if not self._columns:
            numbers = np.arange(fragment.first_row, fragment.first_row + fragment.num_rows)
            return int(_holds(self._condition, Rows({}, numbers)).sum())
        return sum(int(mask.sum()) for _, mask, _ in self._judged(fragment, self._columns))

    def _judged(
        self, fragment: Fragment, columns: Sequence[str]
    ) -> Iterator[tuple[Block, npt.NDArray[np.bool_], npt.NDArray[np.int64]]]:
        """The blocks of a fragment, which of their rows are kept, and their numbers."""
        first = fragment.first_row
        for block in self._inner.read(fragment, columns):
            numbers = np.arange(first, first + block.table.num_rows)
            values = {name: one_chunk(without_dictionary(block.table.column(name))) for name in self._columns}
            mask = _holds(self._condition, Rows(values, numbers))
            for bad in block.bad:
                if bad.column is None or bad.column in self._columns:
                    mask[bad.row] = True
            yield block, mask, numbers
            first += block.table.num_rows


def _holds(condition: Condition, rows: Rows) -> npt.NDArray[np.bool_]:
    mask = condition.mask(rows)
    found: npt.NDArray[np.bool_] = np.array(mask.fill_null(False).to_numpy(zero_copy_only=False))
    return found


def _kept(
    block: Block, mask: npt.NDArray[np.bool_], numbers: npt.NDArray[np.int64], columns: Sequence[str]
) -> Block:
    table = block.table.select(list(columns))
    if mask.all():
        return Block(table, block.bad, numbers=numbers)
    places = np.cumsum(mask) - 1
    bad = tuple(replace(item, row=int(places[item.row])) for item in block.bad if mask[item.row])
    return Block(table.filter(pa.array(mask)), bad, numbers=numbers[mask])
