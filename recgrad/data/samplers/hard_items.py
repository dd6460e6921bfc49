"""Hard negatives: items that a user's own edges name."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.samplers.edges import Edges
from recgrad.data.samplers.item_side import Own
from recgrad.data.samplers.items import ItemTable
from recgrad.data.samplers.user_edges import UserEdges
from recgrad.kernels import cached_njit

Ints = npt.NDArray[np.int64]
logger = logging.getLogger("recgrad.data")


@dataclass(frozen=True)
class HardItems:
    """The hard negatives of users, as rows of an item table.

    Attributes:
        edges: whose items are rows of the table; the first of a user are the heaviest.
        table: the table.
        most: the most hard negatives of a row.
    """

    edges: UserEdges
    table: ItemTable
    most: int

    def of(self, column: pa.Array, own: Own) -> tuple[Ints, Ints]:
        """The row of the batch and the row of the table of each hard negative, batch rows ascending.

        A user's first edges are taken; those to the row's own item are left out.
        """
        found = self.edges.of(column)
        stops = np.minimum(found.stops, found.starts + self.most)
        return _others(found.keys, found.starts, stops, self.table.keys, own.keys, own.starts, own.stops)


def build_hard_items(edges: UserEdges, table: ItemTable, most: int) -> HardItems:
    """Hard negatives of edges; those to items that the table lacks are left out, and said to be."""
    known = edges.edges
    rows = table.rows_of(known.items)
    there = rows >= 0
    missing = int(len(rows) - there.sum())
    if missing:
        logger.warning(
            "edge table '%s': %d of %d hard negatives are not in item table '%s' and are left out",
            known.name, missing, len(rows), table.name,
        )  # fmt: skip
    starts = np.concatenate([[0], np.cumsum(there)])[known.starts]
    kept = Edges(known.name, known.users, starts, rows[there])
    return HardItems(UserEdges(kept, edges.id_field, edges.hashed), table, most)


@cached_njit(nogil=True)
def _others(
    rows: Ints, starts: Ints, stops: Ints, keys: Ints, own: Ints, own_starts: Ints, own_stops: Ints
) -> tuple[Ints, Ints]:
    """The owner and the table's row of each hard negative but those whose keys are the owner's own."""
    total = (stops - starts).sum()
    owners, taken, count = np.empty(total, np.int64), np.empty(total, np.int64), 0
    for owner in range(len(starts)):
        for at in range(starts[owner], stops[owner]):
            is_own = False
            for place in range(own_starts[owner], own_stops[owner]):
                is_own |= own[place] == keys[rows[at]]
            owners[count], taken[count] = owner, rows[at]
            count += int(not is_own)
    return owners[:count], taken[:count]
