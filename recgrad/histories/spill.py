"""Tables cut into parts on disk, so that one part at a time fits into memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class Spill:
    """Parts of a table, each in a file of its own until it is read; in memory where there is one part alone.

    Args:
        folder: where the files go.
        name: what they begin with.
        parts: how many.
    """

    def __init__(self, folder: Path, name: str, parts: int) -> None:
        self.folder, self.name, self.parts = folder, name, parts
        self._memory: list[pa.Table] = []
        self._writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Spill:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def add(self, table: pa.Table, part: npt.NDArray[np.int64]) -> None:
        """Rows, and which part each goes to."""
        if self.parts == 1:
            self._memory.append(table)
            return
        for number in np.unique(part):
            rows = table.take(pa.array(np.flatnonzero(part == number)))
            self._writer(int(number), rows.schema).write_table(rows)

    def _writer(self, part: int, schema: pa.Schema) -> pa.ipc.RecordBatchStreamWriter:
        if part not in self._writers:
            file = self._stack.enter_context(self._path(part).open("wb"))
            self._writers[part] = self._stack.enter_context(pa.ipc.new_stream(file, schema))
        return self._writers[part]

    def _path(self, part: int) -> Path:
        return self.folder / f"{self.name}-{part}.arrow"

    def tables(self) -> Iterator[pa.Table]:
        """The parts in order, each with its rows in the order of adding; parts without rows are left out."""
        self._stack.close()
        if self.parts == 1:
            if self._memory:
                yield pa.concat_tables(self._memory)
            return
        for part in sorted(self._writers):
            with pa.memory_map(str(self._path(part))) as source:
                table = pa.ipc.open_stream(source).read_all()
                yield table
                del table
            self._path(part).unlink()
