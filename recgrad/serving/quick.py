"""The way of most requests: plain JSON rows, few enough, scored in memory that was laid out before.

Three calls of C make of JSON cells, of cells ids and numbers, of ids vectors, where these always lie; then
comes the program. Whatever is not plain is left to the ways that take everything.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.data.plain.encoder import Cells
from recgrad.embedding.mapped.tables import address_of
from recgrad.kernels.compile import compiled
from recgrad.serving import json_kernel as kernel
from recgrad.serving import quick_kernel
from recgrad.serving.json_rows import BodyReader
from recgrad.serving.scorer import Scorer, Scores

MAX_BYTES = 1 << 18
"""Of all bodies together."""
MAX_ROWS = 256
MAX_BODIES = 256
MAX_SIZES = 64
"""Numbers of rows for which scoring is kept prepared."""


class QuickScorer:
    """Scores plain bodies of all columns that the model reads.

    Args:
        scorer: the model.
        reader: of its bodies.
    """

    def __init__(self, scorer: Scorer, reader: BodyReader) -> None:
        self._scorer = scorer
        self._lock = threading.Lock()
        count = len(reader.kinds)
        self._ends = np.zeros(MAX_BODIES, np.int64)
        self._found = np.zeros((MAX_BODIES, kernel.FOUND), np.int64)
        shape, result = np.zeros(count + 1, np.int64), np.zeros(2, np.int64)
        room = MAX_ROWS + 1
        values, ends = np.zeros((count, room), np.int64), np.zeros((count, room), np.int64)
        states = np.zeros((count, room), np.uint8)
        every = tuple(range(count))
        self._cells = Cells(1, reader.names, reader.layout, every, values, ends, states, None)
        self._buffers = scorer.buffers(self._cells)
        self._prepared: dict[int, Callable[[], Scores | None]] = {}
        arrays: tuple[npt.NDArray[Any], ...] = (
            self._ends, reader.name_bytes, reader.name_offsets, reader.kinds, shape,
            values, ends, states, self._found, reader.limits, result,
        )  # fmt: skip
        block = np.array([0, count, room, 0, *map(address_of, arrays)], np.int64)
        self._kept = block, arrays
        self._code = compiled(quick_kernel.read_cells, quick_kernel.SIGNATURE)
        # Given bytes, ctypes passes their address.
        self._kernel = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_char_p)(self._code.address)
        self._address = address_of(block)
        # Python reads and writes single numbers of these, which NumPy is slow at.
        self._arguments, self._end_of, self._result = block.data, self._ends.data, result.data

    @classmethod
    def of(cls, scorer: Scorer, reader: BodyReader) -> QuickScorer | None:
        """The quick way of a model; None if it has none."""
        if not hasattr(scorer, "prepare") or not len(reader.kinds) or (reader.kinds == kernel.OTHER).any():
            return None
        made = cls(scorer, reader)
        return made if made._of_size(1) is not None else None

    def score(self, bodies: Sequence[bytes], max_rows: int) -> tuple[Scores, list[int]] | None:
        """The scores of all rows and the number of each body's, or None where another way is needed.

        Raises:
            UnicodeDecodeError: a body is not UTF-8.
        """
        if len(bodies) > MAX_BODIES or not self._lock.acquire(blocking=False):
            return None
        try:
            # Cells refer to the text until the rows are encoded.
            text = bodies[0] if len(bodies) == 1 else b"".join(bodies)
            rows = self._read(text, bodies, max_rows)
            run = None if rows < 1 else self._of_size(rows)
            scores = None if run is None else run()
            if scores is None:
                return None
            return scores, [rows] if len(bodies) == 1 else self._found[: len(bodies), kernel.ROWS].tolist()
        finally:
            self._lock.release()

    def _read(self, text: bytes, bodies: Sequence[bytes], max_rows: int) -> int:
        """Read bodies, which `text` has one after another; returns the number of rows, −1 for another way."""
        if len(text) > MAX_BYTES:
            return -1
        for at, end in enumerate(accumulate(map(len, bodies))):
            self._end_of[at] = end
        arguments = self._arguments
        arguments[quick_kernel.BODIES], arguments[quick_kernel.MAX_ROWS] = len(bodies), max_rows
        self._kernel(self._address, text)
        rows, high = self._result
        if rows > 0 and high:
            for body in bodies:
                body.decode()  # texts beyond ASCII must be UTF-8
        return int(rows)

    def _of_size(self, rows: int) -> Callable[[], Scores | None] | None:
        known = self._prepared.get(rows)
        if known is None:
            known = self._scorer.prepare(replace(self._cells, size=rows), self._buffers)
            if known is not None:
                if len(self._prepared) >= MAX_SIZES:
                    self._prepared.clear()
                self._prepared[rows] = known
        return known
