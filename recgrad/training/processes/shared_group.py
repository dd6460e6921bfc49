"""Collectives of the ranks of one machine over rings, as a process group that TorchRec takes like any other.

Sums are those of rank 0, 1, 2 … in this order for every element, so all ranks get the same bits every time:

    reduce_scatter   share s of everyone to rank s, which adds up
    all_reduce       short: everyone to everyone, and each adds up
                     long: reduce_scatter, then each share to everyone
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from recgrad.training.processes.rings import Rings, Transfer

BACKEND = "recgrad"
SHORT_BYTES = 16 << 10  # below, a second round costs more than the bytes of all

_REDUCTIONS: tuple[tuple[Any, Callable[..., Tensor]], ...] = (
    (dist.ReduceOp.SUM, torch.add),
    (dist.ReduceOp.MAX, torch.maximum),
)


# Its stubs know ways to call its methods that torch.distributed has left.
_Group: Any = dist.ProcessGroup

_BY_GLOO = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single_coalesced",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)
"""Collectives that are rare: the default group has them."""


class SharedWork(dist.Work):
    """Tensors on their way; `wait` is to be called."""

    def __init__(
        self, rings: Rings, transfer: Transfer, keep: Any, finish: Callable[[], None] | None
    ) -> None:
        super().__init__()
        self._rings = rings
        self._transfer = transfer
        self._keep = keep  # what is being sent must not be freed
        self._finish = finish

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until all has come."""
        self._rings.wait(self._transfer)
        finish, self._finish, self._keep = self._finish, None, None
        if finish is not None:
            finish()
        return True

    def is_completed(self) -> bool:
        """Whether all has come; nothing moves before it is waited for."""
        return self._finish is None and not self._transfer.left


class SharedMemoryGroup(_Group):  # type: ignore[misc]
    """The ranks of one machine: what the step of a run needs goes by rings, all else by gloo.

    Every collective must be a method of this class. What torch finds none for, it looks for here with the
    lock of the interpreter in its hands, and keeps that while it waits for a lock of gloo's, whose holder may
    wait for the interpreter: then the process stands still for good.
    """

    def __init__(self, rings: Rings) -> None:
        super().__init__(rings.rank, rings.ranks)
        self.rings = rings
        world: Any = dist.group.WORLD
        cpu = torch.device("cpu")
        self._register_backend(cpu, dist.ProcessGroup.BackendType.GLOO, world._get_backend(cpu))

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> dist.Work:
        """Rows of the input to each rank, and rows of the output from each; equal shares without sizes."""
        return self._exchange(
            _shares(output, output_split_sizes, self), _shares(input, input_split_sizes, self)
        )

    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        """The input of each rank, to all."""
        return self._exchange(list(outputs[0]), [inputs[0]] * self.size())

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        """The inputs of all ranks one after another, to all."""
        return self._exchange(_shares(output, (), self), [input] * self.size())

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> dist.Work:
        """One rank's tensor, in place of those of the others."""
        (tensor,) = tensors
        if self.rank() == opts.rootRank:
            others = [None if rank == self.rank() else tensor for rank in range(self.size())]
            return self._move([None] * self.size(), others)
        receives: list[Tensor | None] = [None] * self.size()
        receives[opts.rootRank] = tensor
        return self._move(receives, [None] * self.size())

    def gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any) -> dist.Work:
        """The input of each rank, to one of them."""
        own = self.rank()
        if own != opts.rootRank:
            sends: list[Tensor | None] = [None] * self.size()
            sends[opts.rootRank] = inputs[0]
            return self._move([None] * self.size(), sends)
        receives: list[Tensor | None] = list(outputs[0])
        outputs[0][own].detach().copy_(inputs[0])
        receives[own] = None
        return self._move(receives, [None] * self.size())

    def reduce_scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any
    ) -> dist.Work:
        """The sum of what all ranks have for this one."""
        return self._reduce(outputs[0], inputs[0], opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> dist.Work:
        """The sum of this rank's share of all inputs."""
        return self._reduce(output, _shares(input, (), self), opts)

    def allreduce(self, tensors: Sequence[Tensor], opts: Any) -> dist.Work:
        """The sum of all ranks' tensors, in place of them; waits for it."""
        (tensor,) = tensors
        if tensor.numel() * tensor.element_size() <= SHORT_BYTES:
            return self._reduce(tensor, [tensor] * self.size(), opts)
        flat = tensor.detach().view(-1)
        shares = list(flat.tensor_split(self.size()))
        own = shares[self.rank()]
        self._reduce(own, shares, opts).wait()
        return self._exchange(shares, [own] * self.size())

    def _reduce(self, output: Tensor, inputs: Sequence[Tensor], opts: Any) -> dist.Work:
        reduction = next((own for kind, own in _REDUCTIONS if opts.reduceOp == kind), None)
        if reduction is None:
            raise NotImplementedError("shared memory: only sums and maxima are reduced")
        parts = [torch.empty_like(output) for _ in inputs]
        own = self.rank()
        parts[own] = inputs[own].detach().view(output.shape)  # it may be the output, which is written last

        def finish() -> None:
            total, room = parts[0], parts[0 if own else 1]
            for part in parts[1:-1]:
                total = reduction(total, part, out=room)
            reduction(total, parts[-1], out=output.detach())

        return self._exchange(parts, inputs, finish)

    def _exchange(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], finish: Callable[[], None] | None = None
    ) -> dist.Work:
        """Each input to its rank, each output from its rank; this rank's own is copied."""
        own: int = self.rank()
        receives: list[Tensor | None] = list(outputs)
        sends: list[Tensor | None] = list(inputs)
        receives[own] = sends[own] = None
        work = self._move(receives, sends, finish)
        if outputs[own].data_ptr() != inputs[own].data_ptr():
            # While the others read what was posted.
            _bytes_of(outputs[own]).copy_(_bytes_of(inputs[own]))
        return work

    def _move(
        self,
        receives: Sequence[Tensor | None],
        sends: Sequence[Tensor | None],
        finish: Callable[[], None] | None = None,
    ) -> dist.Work:
        transfer = self.rings.post(
            [None if part is None else _bytes_of(part) for part in sends],
            [None if part is None else _bytes_of(part) for part in receives],
        )
        return SharedWork(self.rings, transfer, (receives, sends), finish)


def _by_gloo(name: str) -> Callable[..., Any]:
    def collective(self: SharedMemoryGroup, *args: Any, **options: Any) -> Any:
        return getattr(dist.group.WORLD, name)(*args, **options)

    return collective


for _name in _BY_GLOO:
    setattr(SharedMemoryGroup, _name, _by_gloo(_name))


def _shares(tensor: Tensor, rows: Sequence[int], group: dist.ProcessGroup) -> list[Tensor]:
    """A tensor's rows by rank, in equal shares if `rows` is empty."""
    ranks, count = group.size(), tensor.shape[0]
    if not rows and count % ranks:
        raise ValueError(f"{count} rows cannot be shared equally by {ranks} ranks")
    return list(tensor.detach().split_with_sizes(list(rows) or [count // ranks] * ranks))


def _bytes_of(tensor: Tensor) -> Tensor:
    """The memory of a tensor as bytes; one that is not contiguous is an error, not copied in vain."""
    return tensor.detach().view(-1).view(torch.uint8)


def build_shared_group(rings: Rings) -> dist.ProcessGroup:
    """A group of all ranks over these rings, beside the one there is."""

    def create(store: Any, rank: int, ranks: int, timeout: timedelta) -> SharedMemoryGroup:
        return SharedMemoryGroup(rings)

    dist.Backend.register_backend(BACKEND, create, devices=["cpu"])
    group: dist.ProcessGroup = dist.new_group(backend=BACKEND)
    return group
