"""The ids of a batch on their way to the ranks that hold their tables.

header   of each key that a rank needs: bags, ids, lengths that follow
ids      key after key, then lengths, where bags of a key do not have one id each
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from recgrad.embedding.engine import Ids, IdsLike
from recgrad.embedding.sharded.whole_tables.holders import WholeTables
from recgrad.embedding.sharded.whole_tables.outgoing import Outgoing, pack_up, packed_size

Array = npt.NDArray[np.int64]
HEADER = 3  # numbers of each key


class Arrived(NamedTuple):
    """Bags of all ranks for this one.

    Attributes:
        bags: int64 [ranks, own keys].
        most: int64 [ranks], the most of any key: as many has each rank in the lookup.
        ids: of all of them, rank after rank, with empty bags where a key has fewer.
    """

    bags: Array
    most: Array
    ids: Ids


class IdExchange:
    """The ids of a batch on their way to the holders of their tables.

    The ranks first tell each other how many ids come, then send them.

    Args:
        tables: of all ranks.
        ids: of this rank's batch, a bag for each row.
        counts: ids of each key.
    """

    def __init__(self, tables: WholeTables, ids: IdsLike, counts: Array) -> None:
        self._tables = tables
        self.outgoing: Outgoing = pack_up(ids, counts, tables.distinct_keys())
        own = self.outgoing
        numbers = np.stack([own.bags, own.counts, own.lengths])
        header = np.concatenate([numbers[:, keys].reshape(-1) for keys in tables.keys_of])
        self._sizes = [int(packed_size(own.counts[keys], own.lengths[keys])) for keys in tables.keys_of]
        sizes, expected = [HEADER * len(keys) for keys in tables.keys_of], HEADER * len(tables.own_keys)
        self._header, self._work = tables.exchange(torch.from_numpy(header), sizes, [expected] * tables.ranks)
        self._coming: tuple[Tensor, dist.Work] | None = None

    def send(self) -> None:
        """Wait for the counts of all ranks, and begin to send the ids."""
        tables = self._tables
        self._work.wait()
        found = self._header.numpy().reshape(tables.ranks, HEADER, len(tables.own_keys))
        self._bags, self._counts, self._lengths = found[:, 0], found[:, 1], found[:, 2]
        self._expected = packed_size(self._counts, self._lengths).tolist()
        parts = [part for keys in tables.keys_of for part in self.outgoing.packed(keys)]
        self._coming = tables.exchange(torch.cat(parts), self._sizes, self._expected)

    def arrive(self) -> None:
        """Wait for the ids of all ranks that are for this one."""
        if self._coming is not None:
            self._coming[1].wait()

    def arrived(self) -> Arrived:
        """They, laid out for a lookup."""
        self.arrive()
        assert self._coming is not None
        keys = len(self._tables.own_keys)
        most = self._bags.max(1, initial=0)
        split: list[int] = []
        for counts, expected in zip(self._counts.tolist(), self._expected):
            split += [*counts, expected - sum(counts)]
        parts = self._coming[0].split_with_sizes(split)
        by_key = [parts[rank * (keys + 1) + key] for key in range(keys) for rank in range(len(most))]
        values = torch.cat(by_key) if by_key else self._coming[0]
        single = not self._lengths.any() and bool((self._bags == most[:, None]).all())
        lengths = torch.empty(0, dtype=torch.int32)
        if not single:
            lengths = torch.from_numpy(self._all_lengths(most, parts[keys :: keys + 1])).view(-1)
        counts = (int(most.sum()),) * keys
        return Arrived(self._bags, most, Ids(values, lengths, counts, single=single))

    def _all_lengths(self, most: Array, sent: Sequence[Tensor]) -> npt.NDArray[np.int32]:
        """int32 [own keys, bags of all ranks]: 1 as far as a rank has bags of a key, or what it has sent."""
        found = np.empty((self._bags.shape[1], int(most.sum())), np.int32)
        first = 0
        for bags, lengths, count, own in zip(self._bags, self._lengths, most.tolist(), sent):
            of_rank = found[:, first : first + count]
            np.less(np.arange(count), bags[:, None], out=of_rank, casting="unsafe")
            jagged = np.flatnonzero(lengths)
            if len(jagged):
                flat = own.view(torch.int32).numpy()[: len(jagged) * count]
                of_rank[jagged] = flat.reshape(len(jagged), count)
            first += count
        return found
