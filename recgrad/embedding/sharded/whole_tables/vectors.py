"""The vectors of a rank's bags from all holders, and their gradients back to these.

    holder   blocks [bags of all ranks, columns], one for each dim, as its lookup has written them
               │ pack: for each other rank and feature the vectors [bags, dim] that it asked for
               ▼
             flat ═▶ flat of each rank          what is for the holder itself stays where it is
                       │ take: to rows by code, or as they are
                       ▼
             matrix [rows, columns of some features], for the model

Gradients go the same way back: `put` adds up those of rows with one code. In half precision a rank sends to
itself as well, so that vectors do not depend on who holds them.

Nothing waits before it must. While vectors of others are under way, a rank takes its own; while gradients
are, dense ones are averaged and dense weights updated:

    forward    pack, send ─▶ own columns ─▶ wait ─▶ columns of others
    backward   send ─▶ dense average ─▶ dense step ─▶ wait, unpack ─▶ sparse step
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.embedding.sharded import column_kernels as kernels
from recgrad.embedding.sharded.halves import GRADIENTS, VECTORS
from recgrad.embedding.sharded.whole_tables.exchange import Arrived, IdExchange
from recgrad.embedding.sharded.whole_tables.holders import Choice, WholeTables
from recgrad.embedding.sharded.whole_tables.outgoing import Outgoing
from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import launch

Array = npt.NDArray[np.int64]


class BagExchange(IdExchange):
    """The ids of a batch on their way to the holders of their tables, and the vectors back."""

    def look_up(self) -> HeldBags:
        """The sums of this rank's bags, from all holders."""
        arrived = self.arrived()
        return HeldBags(self._tables, self.outgoing, arrived, self._tables.look_up(arrived.ids))


class Layout(NamedTuple):
    """Where vectors lie in what travels.

    Attributes:
        first: of each feature (of each rank and feature), in elements.
        counts: of vectors.
        sizes: elements by rank.
    """

    first: Array
    counts: Array
    sizes: list[int]

    @staticmethod
    def wanted(tables: WholeTables, outgoing: Outgoing) -> Layout:
        """What this rank gets of all features, holder after holder."""
        counts = outgoing.bags[tables.places]
        if not tables.half:
            counts[tables.own] = 0
        sizes = counts * tables.dims
        by_rank = np.bincount(tables.holder_of, sizes, tables.ranks).astype(np.int64)
        return Layout(np.cumsum(sizes) - sizes, counts, by_rank.tolist())

    @staticmethod
    def held(tables: WholeTables, arrived: Arrived) -> Layout:
        """What this rank gives to others, [ranks, own features]."""
        counts = arrived.bags[:, tables.own_places]
        if not tables.half:
            counts[tables.rank] = 0
        sizes = counts * tables.dims[tables.own]
        ends = np.cumsum(sizes.reshape(-1)).reshape(sizes.shape)
        return Layout(ends - sizes, counts, sizes.sum(1).tolist())


class _Received:
    """This rank's bags of all features, and then their gradients.

    Attributes:
        rows: of this rank's batch.
        blocks: of this rank's lookup.
    """

    def __init__(self, tables: WholeTables, outgoing: Outgoing, arrived: Arrived) -> None:
        self.tables, self.outgoing = tables, outgoing
        self.rows = outgoing.rows
        self.wanted, self.held = Layout.wanted(tables, outgoing), Layout.held(tables, arrived)
        self._most = arrived.most
        self._starts = np.cumsum(arrived.most) - arrived.most
        # Gradients of ids are added up, and empty bags get none: where there are neither, all is written.
        self._sums = bool(outgoing.codes.any() or (arrived.bags != arrived.most[:, None]).any())
        self.blocks: list[Tensor] = []
        self._flat: Tensor | None = None
        self._gradients: tuple[list[Tensor], Tensor] | None = None
        self._given = np.zeros(len(tables.dims), bool)

    def receive(self, blocks: Sequence[Tensor]) -> None:
        """Send the vectors of blocks to who has asked for them."""
        self.blocks = list(blocks)
        given = torch.empty(sum(self.held.sizes))
        self._pack(kernels.pack_vectors, self.blocks, given)
        self._arrive = self.tables.send_vectors(given, self.held.sizes, self.wanted.sizes, VECTORS)

    def take(self, features: tuple[str, ...]) -> Tensor:
        """[rows, columns of these features]; first those that need not be waited for."""
        tables, choice = self.tables, self.tables.choice(features)
        found = torch.empty(self.rows, choice.width)
        here = np.full(len(choice.features), self._flat is not None)
        if not tables.half:
            here |= tables.holder_of[choice.features] == tables.rank
        if here.any():
            self._take(choice, np.flatnonzero(here), found)
        if not here.all():
            self._flat = self._arrive()
            self._take(choice, np.flatnonzero(~here), found)
        return found

    def _take(self, choice: Choice, places: Array, found: Tensor) -> None:
        """Some of the columns that were chosen."""
        flat = torch.empty(0) if self._flat is None else self._flat
        spans = self._spans(choice.features[places], choice.columns[places], self.blocks, flat)
        launch(
            compiled(kernels.take_columns),
            *(self.rows, len(spans), choice.width, spans, found.data_ptr()),
            tasks=-(-self.rows // kernels.BLOCK),
        )

    def put(self, features: tuple[str, ...], gradient: Tensor) -> None:
        """Take in the gradient of what `take` gave; what a feature has from before is added to."""
        choice = self.tables.choice(features)
        gradient = gradient.detach().to(torch.float32)
        if gradient.stride(1) != 1:
            gradient = gradient.contiguous()
        blocks, flat = self._gradients = self._gradients or self._new_gradients()
        share = np.array([1 / self.tables.ranks], np.float32)
        for turn in choice.turns:  # two threads must not add to one feature
            own = choice.features[turn]
            spans = self._spans(own, choice.columns[turn], blocks, flat)
            spans[:, kernels.SPAN_ADD] = self._given[own]
            self._given[own] = True
            launch(
                compiled(kernels.put_columns),
                *(self.rows, len(spans), gradient.stride(0), spans, gradient.data_ptr(), share),
                tasks=-(-len(spans) // kernels.GROUP),
            )

    def give_back(self) -> list[Tensor]:
        """Send the gradients of all bags to their holders.

        Those of this rank's blocks are from all ranks once `WholeTables.complete_gradients` was called.
        """
        blocks, flat = self._gradients or self._new_gradients()
        for feature in np.flatnonzero(~self._given):
            self._clear(int(feature), blocks, flat)
        self._gradients, self._given[:] = None, False
        arrive = self.tables.send_vectors(flat, self.wanted.sizes, self.held.sizes, GRADIENTS)
        self.tables.complete_later(lambda: self._pack(kernels.unpack_vectors, blocks, arrive()))
        return blocks

    def _new_gradients(self) -> tuple[list[Tensor], Tensor]:
        new = torch.zeros if self._sums else torch.empty
        return [new(block.shape) for block in self.blocks], new(sum(self.wanted.sizes))

    def _clear(self, feature: int, blocks: Sequence[Tensor], flat: Tensor) -> None:
        tables, dim = self.tables, int(self.tables.dims[feature])
        first, count = int(self.wanted.first[feature]), int(self.wanted.counts[feature])
        flat[first : first + count * dim] = 0
        if not tables.half and tables.holder_of[feature] == tables.rank:
            own = feature - tables.own.start
            begin, column = int(self._starts[tables.rank]), int(tables.column_of[own])
            end = begin + int(self._most[tables.rank])
            blocks[tables.block_of[own]][begin:end, column : column + dim] = 0

    def _spans(self, features: Array, columns: Array, blocks: Sequence[Tensor], flat: Tensor) -> Array:
        """[features, SPAN]: where their vectors, or gradients, are here and in a matrix."""
        tables = self.tables
        vectors, strides = flat.data_ptr() + 4 * self.wanted.first, 4 * tables.dims
        if not tables.half:
            strides = strides.copy()
            strides[tables.own] = self._block_strides()
            vectors[tables.own] = self._block_vectors(blocks, self._starts[tables.rank])
        spans = np.zeros((len(features), kernels.SPAN), np.int64)
        spans[:, kernels.SPAN_VECTORS], spans[:, kernels.SPAN_STRIDE] = vectors[features], strides[features]
        spans[:, kernels.SPAN_COLUMN], spans[:, kernels.SPAN_DIM] = columns, tables.dims[features]
        spans[:, kernels.SPAN_CODES] = self.outgoing.codes[tables.places[features]]
        return spans

    def _block_strides(self) -> Array:
        found: Array = 4 * self.tables.block_widths[self.tables.block_of]
        return found

    def _block_vectors(self, blocks: Sequence[Tensor], first: Any) -> Array:
        """Where the vectors of own features begin in blocks, from bags `first` on."""
        begin = np.array([block.data_ptr() for block in blocks], np.int64)[self.tables.block_of]
        found: Array = begin + 4 * self.tables.column_of + first * self._block_strides()
        return found

    def _pack(self, kernel: Any, blocks: Sequence[Tensor], flat: Tensor) -> None:
        held, shape = self.held, self.held.counts.shape
        if not held.counts.any():
            return
        lines = np.empty((*shape, kernels.LINE), np.int64)
        lines[..., kernels.LINE_VECTORS] = self._block_vectors(blocks, self._starts[:, None])
        lines[..., kernels.LINE_STRIDE] = self._block_strides()
        lines[..., kernels.LINE_FLAT] = flat.data_ptr() + 4 * held.first
        lines[..., kernels.LINE_COUNT] = held.counts
        lines[..., kernels.LINE_DIM] = self.tables.dims[self.tables.own]
        blocks_of_rank = -(-int(held.counts.max()) // kernels.BLOCK)
        launch(compiled(kernel), *shape, blocks_of_rank, lines, tasks=shape[0] * blocks_of_rank)


class _Vectors(torch.autograd.Function):
    """From the blocks of this rank's lookup to this rank's bags of all features, and their gradients back.

    What comes out is a token: `_Columns` hands the columns out and takes their gradients, and autograd comes
    back here when it has all of them. What goes in has something that wants a gradient on every rank or on
    none, because both ways are collectives: a rank that holds frozen tables alone takes part. Where all
    tables are frozen nobody does: no update would ever wait for these gradients.
    """

    @staticmethod
    def forward(ctx: Any, received: _Received, anchor: Tensor, *blocks: Tensor) -> Tensor:
        ctx.received = received
        received.receive(blocks)
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, token: Tensor) -> tuple[Any, ...]:
        return (None, None, *ctx.received.give_back())


class _Columns(torch.autograd.Function):
    """The columns of some features side by side."""

    @staticmethod
    def forward(ctx: Any, received: _Received, features: tuple[str, ...], token: Tensor) -> Tensor:
        ctx.received, ctx.features = received, features
        return received.take(features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        # Each rank's loss is a mean over its rows; an update is that of the mean over ranks.
        ctx.received.put(ctx.features, gradient)
        return None, None, gradient.new_zeros(())


class HeldBags:
    """Sums of a rank's bags."""

    def __init__(
        self, tables: WholeTables, outgoing: Outgoing, arrived: Arrived, blocks: Sequence[Tensor]
    ) -> None:
        self._received = _Received(tables, outgoing, arrived)
        anchor = torch.empty(0, requires_grad=torch.is_grad_enabled() and tables.trainable)
        self._token: Tensor = _Vectors.apply(self._received, anchor, *blocks)  # type: ignore[no-untyped-call]

    def columns(self, features: Sequence[str]) -> Tensor:
        """[rows, columns of these features]."""
        found: Tensor = _Columns.apply(self._received, tuple(features), self._token)  # type: ignore[no-untyped-call]
        return found
