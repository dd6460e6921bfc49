"""Levenshtein distance of two texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.data.features.operators import OPERATORS, Operator
from recgrad.kernels import cached_njit


@OPERATORS.register("EditDistance")
class EditDistance(Operator):
    """The fewest insertions, deletions and replacements that make one text of the other.

    Args:
        encoding: `utf-8` counts characters, `latin` bytes.
    """

    def __init__(self, *, encoding: Literal["utf-8", "latin"] = "latin") -> None:
        self.characters = encoding == "utf-8"

    def compute(self, columns: Mapping[str, pa.Array]) -> Any:
        """The distances; null where a text is missing."""
        if len(columns) != 2:
            raise ValueError(f"expression must name two inputs for EditDistance, got {len(columns)}")
        first, second = (array.cast(pa.large_string()) for array in columns.values())
        units, starts = zip(*(self._units(array) for array in (first, second)), strict=True)
        found = _distances(units[0], starts[0], units[1], starts[1])
        missing = pc.or_(first.is_null(), second.is_null())
        return pc.if_else(missing, pa.scalar(None, pa.int64()), pa.array(found))

    def _units(self, array: pa.Array) -> tuple[Any, Any]:
        """Characters or bytes of all texts, and where each text's begin."""
        texts = [text or "" for text in array.to_pylist()]
        coded = [text.encode("utf-32-le" if self.characters else "utf-8") for text in texts]
        width = 4 if self.characters else 1
        starts = np.concatenate([[0], np.cumsum([len(text) // width for text in coded], dtype=np.int64)])
        return np.frombuffer(b"".join(coded), np.uint32 if self.characters else np.uint8), starts


@cached_njit(nogil=True)
def _distances(a: Any, a_starts: Any, b: Any, b_starts: Any) -> Any:
    found = np.empty(len(a_starts) - 1, np.int64)
    for row in range(len(found)):
        x, y = a[a_starts[row] : a_starts[row + 1]], b[b_starts[row] : b_starts[row + 1]]
        costs = np.arange(len(y) + 1)
        for i in range(len(x)):
            corner = costs[0]
            costs[0] = i + 1
            for j in range(len(y)):
                best = min(corner + (x[i] != y[j]), costs[j] + 1, costs[j + 1] + 1)
                corner = costs[j + 1]
                costs[j + 1] = best
        found[row] = costs[len(y)]
    return found
