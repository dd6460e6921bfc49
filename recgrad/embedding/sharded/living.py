"""A table whose rows belong to ids as they come, of several ranks: it lies whole on one of them.

So rounds see all ids of the table, and who stays does not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.embedding.engine import NO_TURNOVER, LivingRows, Turnover
from recgrad.embedding.local.living.table import LivingTable
from recgrad.embedding.sharded.table import ShardedTable

Array = npt.NDArray[Any]


class ShardedLivingTable(ShardedTable, LivingRows):
    """The table where this rank has it, and nothing where another has."""

    def _here(self) -> LivingTable | None:
        own = [shard for shard in self.shards if isinstance(shard, LivingTable)]
        return own[0] if own else None

    def turnover(self) -> Turnover:
        """What has come and gone; nothing on other ranks."""
        own = self._here()
        return NO_TURNOVER if own is None else own.turnover()

    def export_scores(self) -> dict[str, Array]:
        """All that rows do not hold; nothing on other ranks."""
        own = self._here()
        return {} if own is None else own.export_scores()

    def import_scores(self, state: Mapping[str, Array]) -> None:
        """Take over the ids of a checkpoint, before its rows, if they are for this rank."""
        own = self._here()
        if own is not None:
            own.import_scores(state)

    def begin_with(self, ids: Array, weights: Array) -> None:
        """Rows that ids have before training, if the table is this rank's."""
        own = self._here()
        if own is not None:
            own.begin_with(ids, weights)

    def every_row(self) -> Iterator[tuple[Array, Array]]:
        """All ids with a row, written or not, and their values; none on other ranks."""
        own = self._here()
        yield from () if own is None else own.every_row()

    def stand_ins(self) -> Array:
        """What ids without a row read as in evaluation; none on other ranks."""
        own = self._here()
        return np.empty((0, self.dim), np.float32) if own is None else own.stand_ins()
