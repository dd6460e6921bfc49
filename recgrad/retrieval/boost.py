"""What raises an item's rank for every query alike: similarity + weight · log(1 + a number of the item).

A model that learns which of a user's items are hers knows items with few interactions by chance as well as
by taste, and of many such some come near every user. Popularity that is added when ranking, and not while
training, makes up for it: Zhang et al. 2021 (PDA), https://arxiv.org/abs/2105.06067
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from recgrad.errors import RecgradError
from recgrad.retrieval.lists import Floats

NOT_EUCLID = (
    "is added to similarities that are inner products, not to distances; choose COSINE or INNER_PRODUCT"
)


@dataclass(frozen=True)
class Boost:
    """What is added to the similarities of items.

    Attributes:
        field: the items' column of numbers, 0 or more, such as how often each was bought.
        weight: of log(1 + number), in units of the similarity (before a temperature divides it).
    """

    field: str
    weight: float

    def values(self, column: pa.ChunkedArray | pa.Array, where: str) -> Floats:
        """What is added for each item, float32 [items].

        Raises:
            RecgradError: the column has something else than numbers from 0 on.
        """
        kind = column.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            raise RecgradError(f"{where}: column '{self.field}' has to be of numbers, is {kind}")
        if column.null_count:
            raise RecgradError(f"{where}: column '{self.field}' has items without a number; give 0 to them")
        numbers: Any = np.asarray(column, np.float64)
        bad = np.flatnonzero(~((numbers >= 0) & np.isfinite(numbers)))
        if len(bad):
            found = f"{numbers[bad[0]]:g} in row {bad[0]}"
            raise RecgradError(f"{where}: column '{self.field}' has to be 0 or more, is {found}")
        raised: Floats = (self.weight * np.log1p(numbers)).astype(np.float32)
        return raised
