"""What becomes of the cells that `json_kernel` has read: counts, and the bytes of texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from recgrad.kernels import cached_njit
from recgrad.serving.json_kernel import HARD, NULL


@cached_njit(nogil=True)
def tally(states: Any, columns: Any, rows: Any) -> Any:
    """The nulls of each column, and the floats of all that are left to another reader."""
    nulls = np.zeros(len(columns), np.int64)
    hard = 0
    for at in range(len(columns)):
        for row in range(rows):
            nulls[at] += states[columns[at], row] == NULL
            hard += states[columns[at], row] == HARD
    return nulls, hard


@cached_njit(nogil=True)
def gather_texts(text: Any, columns: Any, rows: Any, cells: Any, stops: Any, offsets: Any) -> Any:
    """The bytes of text columns, one column after another.

    offsets: int32 [columns, rows + 1], takes where each text begins within its column. A null has none.
    """
    total = 0
    for at in range(len(columns)):
        column = columns[at]
        size = 0
        offsets[at, 0] = 0
        for row in range(rows):
            size += stops[column, row] - cells[column, row]
            offsets[at, row + 1] = size
        total += size
    data = np.empty(total, np.uint8)
    place = 0
    for column in columns:
        for row in range(rows):
            for at in range(cells[column, row], stops[column, row]):
                data[place] = text[at]
                place += 1
    return data
