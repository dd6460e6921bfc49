"""Which rank holds which tables, and how tensors go between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from recgrad.embedding.engine import Ids
from recgrad.embedding.sharded.halves import Halves
from recgrad.embedding.sharded.kernel import ShardKernel
from recgrad.optim.sparse.tables import SparseTable

Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Holder:
    """What one rank holds.

    Attributes:
        keys: places of the keys whose ids it needs, ascending.
        features: that it gives vectors of, in the order in which it sends them.
        places: of the key of each.
        dims: columns of each.
        trainable: whether a table of them is.
    """

    keys: tuple[int, ...]
    features: tuple[str, ...]
    places: tuple[int, ...]
    dims: tuple[int, ...]
    trainable: bool


class Choice(NamedTuple):
    """Features side by side in a matrix.

    Attributes:
        features: their numbers.
        columns: the first of each.
        width: of all.
        turns: places in the two above, the first time that a feature appears, the second time …
    """

    features: Array
    columns: Array
    width: int
    turns: list[Array]


class WholeTables:
    """The kernels of this rank, and what all ranks hold; every rank is to build one.

    Args:
        kernels: of this rank, with keys of their own (`ShardKernel.places`).
        key_tables: by key, the tables that its ids are looked up in, if their distinct ids may be sent: an
            update must not ask how often an id was there, nor for the gradient of each row.
        group: what everything goes by; the default group if None.
        half: vectors and gradients travel in half precision.

    Attributes:
        holders: by rank.
        number: by name, of all features, holder after holder.
        dims, places, holder_of: of all features: columns, place of the key, rank.
        own: which of them this rank holds.
        own_keys: places of the keys that it needs.
        own_places: where the key of each of its features is among these.
        block_of, column_of: where its features are in what its kernels give: number of the block, column.
        block_widths: columns of each block.
        trainable: whether a table of any rank is; if not, no gradients are exchanged.
    """

    def __init__(
        self,
        kernels: Sequence[ShardKernel],
        key_tables: Sequence[Sequence[SparseTable]],
        group: dist.ProcessGroup | None,
        half: bool = False,
    ) -> None:
        self.kernels = tuple(kernels)
        self.group = group
        self.half = half
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self._key_tables = key_tables
        blocks = [(names, dim, kernel) for kernel in kernels for names, dim in kernel.blocks]
        self.block_of, self.column_of = (
            np.array(
                [(b, i * dim) for b, (names, dim, _) in enumerate(blocks) for i in range(len(names))],
                np.int64,
            )
            .reshape(-1, 2)
            .T
        )
        self.block_widths = np.array([len(names) * dim for names, dim, _ in blocks], np.int64)
        own = Holder(
            tuple(sorted({place for kernel in kernels for place in kernel.places})),
            tuple(name for names, _, _ in blocks for name in names),
            tuple(kernel.feature_places[name] for names, _, kernel in blocks for name in names),
            tuple(dim for names, dim, _ in blocks for _ in names),
            any(table.trainable for kernel in kernels for table in kernel.engine.tables.values()),
        )
        holders: list[Any] = [None] * self.ranks
        dist.all_gather_object(holders, own)
        self.holders: tuple[Holder, ...] = tuple(holders)
        self.keys_of = [np.array(holder.keys, np.int64) for holder in self.holders]
        sizes = [len(holder.features) for holder in self.holders]
        names = [name for holder in self.holders for name in holder.features]
        self.number = {name: i for i, name in enumerate(names)}
        self.dims = np.array([dim for holder in self.holders for dim in holder.dims], np.int64)
        self.places = np.array([place for holder in self.holders for place in holder.places], np.int64)
        self.holder_of = np.repeat(np.arange(self.ranks), sizes)
        self.own = slice(sum(sizes[: self.rank]), sum(sizes[: self.rank + 1]))
        self.own_keys = self.keys_of[self.rank]
        self.own_places = np.searchsorted(self.own_keys, self.places[self.own])
        self.trainable = any(holder.trainable for holder in self.holders)
        self._choices: dict[tuple[str, ...], Choice] = {}
        self._incomplete: list[Callable[[], None]] = []

    def distinct_keys(self) -> npt.NDArray[np.bool_]:
        """[keys]: whether distinct ids may be sent; not where gradients are clamped before they are added."""
        return np.array([bool(own) and not any(table.clamped for table in own) for own in self._key_tables])

    def choice(self, features: tuple[str, ...]) -> Choice:
        """Some features side by side; remembered, because models take the same ones again and again."""
        known = self._choices.get(features)
        if known is None:
            numbers = np.array([self.number[name] for name in features], np.int64)
            ends = np.cumsum(self.dims[numbers])
            turn = np.array([features[:i].count(name) for i, name in enumerate(features)])
            turns = [np.flatnonzero(turn == t) for t in range(int(turn.max(initial=-1)) + 1)]
            known = Choice(numbers, ends - self.dims[numbers], int(ends[-1]) if len(ends) else 0, turns)
            self._choices[features] = known
        return known

    def exchange(
        self, given: Tensor, sizes: Sequence[int], expected: Sequence[int]
    ) -> tuple[Tensor, dist.Work]:
        """A flat tensor's parts on their way to all ranks, and what comes from them."""
        found = given.new_empty(sum(expected))
        work = dist.all_to_all_single(
            output=found,
            input=given,
            output_split_sizes=list(expected),
            input_split_sizes=list(sizes),
            group=self.group,
            async_op=True,
        )
        return found, work

    def send_vectors(
        self, given: Tensor, sizes: Sequence[int], expected: Sequence[int], halves: Halves
    ) -> Callable[[], Tensor]:
        """The same of vectors or their gradients: a function that waits for what comes from all ranks."""
        found, work = self.exchange(halves.encode(given) if self.half else given, sizes, expected)

        def arrive() -> Tensor:
            work.wait()
            return halves.decode(found) if self.half else found

        return arrive

    def complete_later(self, complete: Callable[[], None]) -> None:
        """Have gradients that are under way completed by the next `complete_gradients`."""
        self._incomplete.append(complete)

    def complete_gradients(self) -> None:
        """Wait for gradients that are under way: before any are read."""
        incomplete, self._incomplete = self._incomplete, []
        for complete in incomplete:
            complete()

    def look_up(self, ids: Ids) -> list[Tensor]:
        """Blocks [bags, columns] of all kernels, from the ids of this rank's keys."""
        blocks: list[Tensor] = []
        for kernel in self.kernels:
            blocks += kernel.look_up(self._ids_of(kernel, ids))
        return blocks

    def _ids_of(self, kernel: ShardKernel, ids: Ids) -> Ids:
        """The part of some ids that a kernel needs."""
        if kernel.places == self.holders[self.rank].keys:
            return ids
        chosen = np.searchsorted(self.own_keys, np.array(kernel.places, np.int64))
        bags, lengths = ids.bag_counts[0], ids.lengths
        counts = [bags] * len(ids.bag_counts)
        if not ids.single:
            by_key = lengths.view(len(counts), bags)
            counts = by_key.sum(1, dtype=torch.int64).tolist()
            lengths = by_key[torch.from_numpy(chosen)].view(-1)
        parts = ids.values.split_with_sizes(counts)
        values = torch.cat([parts[i] for i in chosen])
        return Ids(values, lengths, (bags,) * len(chosen), single=ids.single)
