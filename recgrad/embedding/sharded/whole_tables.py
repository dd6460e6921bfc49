"""Bags over tables that each lie whole on one rank: ids to their holders, and blocks of columns back.

    ids of a rank ─▶ to each holder the ids of the keys it needs, each once ═▶ one lookup for all ranks' rows
    [rows, columns of a holder] by holder                                   ◀═ its rows to each rank
    their gradients, over the number of ranks                               ═▶ gradients of that lookup

TorchRec has planned who holds which table, and carries everything else: tables cut by rows or columns, ids
with weights, single vectors, other kernels. Here features that share a key also share its ids on the way,
bags of one id each need no lengths, and columns go from what was received to where the model wants them in
one copy, and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from recgrad.embedding.engine import Ids, IdsLike
from recgrad.embedding.sharded.column_kernels import BLOCK, SPAN, put_columns, take_columns
from recgrad.embedding.sharded.halves import GRADIENTS, VECTORS, Halves
from recgrad.embedding.sharded.ids import ids_per_key
from recgrad.embedding.sharded.kernel import ShardKernel
from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import launch

HEADER = 3  # rows, whether every bag has one id, number of ids


@dataclass(frozen=True)
class Holder:
    """What one rank holds.

    Attributes:
        keys: places of the keys whose ids it needs, ascending.
        features: that it gives vectors of, in the order of their columns.
        dims: columns of each.
    """

    keys: tuple[int, ...]
    features: tuple[str, ...]
    dims: tuple[int, ...]


class Column(NamedTuple):
    """Where the columns of a feature are: after `before` of others, from `first` on in rows of `width`."""

    before: int
    first: int
    width: int
    dim: int


class WholeTables:
    """The kernels of this rank, and what all ranks hold; every rank is to build one.

    Args:
        kernels: of this rank, with keys of their own (`ShardKernel.places`).
        group: what everything goes by; the default group if None.
        half: vectors and gradients travel in half precision.
    """

    def __init__(
        self, kernels: Sequence[ShardKernel], group: dist.ProcessGroup | None, half: bool = False
    ) -> None:
        self.kernels = tuple(kernels)
        self.group = group
        self.half = half
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        own = Holder(
            tuple(sorted({place for kernel in kernels for place in kernel.places})),
            tuple(name for kernel in kernels for name in kernel.features),
            tuple(dim for kernel in kernels for dim in kernel.dims),
        )
        holders: list[Any] = [None] * self.ranks
        dist.all_gather_object(holders, own)
        self.holders: tuple[Holder, ...] = tuple(holders)
        self.widths = [sum(holder.dims) for holder in self.holders]
        self.columns: dict[str, Column] = {}
        for rank, holder in enumerate(self.holders):
            first = 0
            for name, dim in zip(holder.features, holder.dims):
                self.columns[name] = Column(sum(self.widths[:rank]), first, self.widths[rank], dim)
                first += dim

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

    def exchange_vectors(
        self, given: Tensor, sizes: Sequence[int], expected: Sequence[int], halves: Halves
    ) -> Tensor:
        """The same of vectors or their gradients, waited for."""
        found, work = self.exchange(halves.encode(given) if self.half else given, sizes, expected)
        work.wait()
        return halves.decode(found) if self.half else found

    def look_up(
        self, ids: Mapping[int, Sequence[Tensor]], lengths: Mapping[int, Sequence[Tensor]] | None, bags: int
    ) -> Tensor:
        """[bags, columns of this rank]: the sums of all ranks' bags, from ids by key and rank."""
        outputs = []
        for kernel in self.kernels:
            values = torch.cat([part for place in kernel.places for part in ids[place]])
            counts = (bags,) * len(kernel.places)
            if lengths is None:
                outputs.append(kernel.look_up(Ids(values, values[:0].int(), counts, single=True)))
            else:
                joined = torch.cat([part for place in kernel.places for part in lengths[place]])
                outputs.append(kernel.look_up(Ids(values, joined, counts)))
        if not outputs:  # backward is a collective: it must run on every rank
            return torch.empty(bags, 0, requires_grad=torch.is_grad_enabled())
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


class BagExchange:
    """The ids of a batch on their way to the holders of their tables, and the vectors back.

    The ranks first tell each other how many ids come, then send them.
    """

    def __init__(self, tables: WholeTables, ids: IdsLike) -> None:
        self._tables = tables
        self._ids = ids
        self._rows = ids.bag_counts[0] if ids.bag_counts else 0
        counts = ids_per_key(ids).tolist()
        self._parts = ids.values.split_with_sizes(counts)
        numbers = [sum(counts[key] for key in holder.keys) for holder in tables.holders]
        header = torch.tensor([[self._rows, ids.single, number] for number in numbers]).view(-1)
        sizes = [HEADER] * tables.ranks
        self._sizes = numbers
        self._header, self._work = tables.exchange(header, sizes, sizes)
        self._coming: list[tuple[Tensor, dist.Work]] = []

    def send(self) -> None:
        """Wait for the counts of all ranks, and begin to send the ids."""
        tables = self._tables
        self._work.wait()
        self._all_rows, single, numbers = self._header.view(-1, HEADER).T.tolist()
        self._single = [bool(one) for one in single]
        self._numbers = numbers
        values = torch.cat([self._parts[key] for holder in tables.holders for key in holder.keys])
        self._coming = [tables.exchange(values, self._sizes, numbers)]
        if not all(self._single):  # all ranks know it of all: a rank without lengths sends ones
            lengths = self._ids.lengths
            if self._ids.single:
                lengths = torch.ones(len(self._ids.bag_counts) * self._rows, dtype=torch.int32)
            by_key = lengths.view(len(self._ids.bag_counts), self._rows)
            chosen = [key for holder in tables.holders for key in holder.keys]
            sizes = [len(holder.keys) * self._rows for holder in tables.holders]
            own = len(tables.holders[tables.rank].keys)
            sent = by_key[chosen].view(-1).to(torch.int32)
            self._coming.append(tables.exchange(sent, sizes, [own * rows for rows in self._all_rows]))

    def arrive(self) -> None:
        """Wait for the ids of all ranks that are for this one."""
        for _, work in self._coming:
            work.wait()

    def look_up(self) -> HeldBags:
        """The sums of this rank's bags, from all holders."""
        self.arrive()
        tables, rows = self._tables, self._all_rows
        keys = tables.holders[tables.rank].keys
        values = self._coming[0][0].split_with_sizes(self._numbers)
        by_rank: list[Sequence[Tensor]]
        if len(self._coming) == 1:
            by_rank = [part.split_with_sizes([count] * len(keys)) for part, count in zip(values, rows)]
            lengths = None
        else:
            sizes = [len(keys) * count for count in rows]
            shapes = [
                part.view(len(keys), count)
                for part, count in zip(self._coming[1][0].split_with_sizes(sizes), rows)
            ]
            by_rank = [part.split_with_sizes(shape.sum(1).tolist()) for part, shape in zip(values, shapes)]
            lengths = {key: [shape[i] for shape in shapes] for i, key in enumerate(keys)}
        ids = {key: [part[i] for part in by_rank] for i, key in enumerate(keys)}
        output = tables.look_up(ids, lengths, sum(rows))
        return HeldBags(tables, rows, output)


class _Received:
    """This rank's rows of all holders' columns, one block after another, and then their gradients.

    Attributes:
        rows: of this rank.
        flat: the blocks.
        gradient: of the blocks, over the number of ranks; None before there is one.
        given: features whose gradient is in it.
    """

    def __init__(self, tables: WholeTables, rows: int, flat: Tensor) -> None:
        self.tables = tables
        self.rows = rows
        self.flat = flat
        self.gradient: Tensor | None = None
        self.given: set[str] = set()

    def take(self, features: Sequence[str]) -> Tensor:
        """[rows, columns of these features]."""
        found = self.flat.new_empty(self.rows, sum(self.tables.columns[name].dim for name in features))
        self._launch(take_columns, features, self.flat, found)
        return found

    def put(self, features: Sequence[str], gradient: Tensor) -> None:
        """Take in the gradient of what `take` gave; what a feature has from before is added to."""
        if self.gradient is None:
            self.gradient = torch.empty_like(self.flat)
        self._launch(put_columns, features, self.gradient, gradient.to(self.flat.dtype).contiguous())
        self.given |= set(features)

    def whole_gradient(self) -> Tensor:
        """The gradient of all blocks, which then counts as given away."""
        found = torch.zeros_like(self.flat) if self.gradient is None else self.gradient
        for name in self.tables.columns.keys() - self.given:
            column = self.tables.columns[name]
            size, start = (self.rows, column.dim), self.rows * column.before + column.first
            found.as_strided(size, (column.width, 1), start).zero_()
        self.gradient, self.given = None, set()
        return found

    def _launch(self, kernel: Any, features: Sequence[str], blocks: Tensor, matrix: Tensor) -> None:
        spans, at = np.empty((len(features), SPAN), np.int64), 0
        seen = set(self.given)
        for i, name in enumerate(features):
            column = self.tables.columns[name]
            start = self.rows * column.before + column.first
            spans[i] = start, column.width, at, column.dim, name in seen
            at += column.dim
            seen.add(name)
        share = np.array([1 / self.tables.ranks], np.float32)
        sizes = self.rows, len(features), at, blocks.numel()
        arrays = spans, blocks.detach().numpy(), matrix.detach().numpy(), share
        launch(compiled(kernel), *sizes, *arrays, tasks=-(-self.rows // BLOCK))


class _Vectors(torch.autograd.Function):
    """From [all ranks' bags, own columns] to this rank's bags in all columns, and their gradients back.

    What comes out is a token: `_Columns` hands the columns out and takes their gradients, and autograd comes
    back here when it has all of them.
    """

    @staticmethod
    def forward(ctx: Any, received: _Received, rows: Sequence[int], output: Tensor) -> Tensor:
        tables = received.tables
        own, width = rows[tables.rank], tables.widths[tables.rank]
        expected = [own * other for other in tables.widths]
        sizes = [count * width for count in rows]
        received.flat = tables.exchange_vectors(output.reshape(-1), sizes, expected, VECTORS)
        ctx.received, ctx.rows = received, rows
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, token: Tensor) -> tuple[None, None, Tensor]:
        received: _Received = ctx.received
        tables, rows = received.tables, ctx.rows
        width = tables.widths[tables.rank]
        sizes = [received.rows * other for other in tables.widths]
        expected = [count * width for count in rows]
        found = tables.exchange_vectors(received.whole_gradient(), sizes, expected, GRADIENTS)
        return None, None, found.view(sum(rows), width)


class _Columns(torch.autograd.Function):
    """The columns of some features side by side."""

    @staticmethod
    def forward(ctx: Any, received: _Received, features: Sequence[str], token: Tensor) -> Tensor:
        ctx.received, ctx.features = received, features
        return received.take(features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        # Each rank's loss is a mean over its rows; an update is that of the mean over ranks.
        ctx.received.put(ctx.features, gradient)
        return None, None, gradient.new_zeros(())


class HeldBags:
    """Sums of a rank's bags."""

    def __init__(self, tables: WholeTables, rows: Sequence[int], output: Tensor) -> None:
        self._received = _Received(tables, rows[tables.rank], output.new_empty(0))
        self._token: Tensor = _Vectors.apply(self._received, rows, output)  # type: ignore[no-untyped-call]

    def columns(self, features: Sequence[str]) -> Tensor:
        """[rows, columns of these features]."""
        found: Tensor = _Columns.apply(self._received, tuple(features), self._token)  # type: ignore[no-untyped-call]
        return found
