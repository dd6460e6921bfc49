"""The processes that compute together: how many they are, and what they sum and gather.

For losses, metrics and models, which need no more of them. Whoever opens the processes says by `exchange_by`
through what tensors on the CPU go, where that is faster than the default group.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_alone: ContextVar[bool] = ContextVar("alone", default=False)
_of_cpu: list[Any] = []
"""The group that tensors on the CPU go by, while there is one."""


@contextmanager
def measuring_alone() -> Iterator[None]:
    """In here this process measures by itself, while the others of its group do something else."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def exchange_by(group: Any) -> None:
    """Have tensors on the CPU go by this group from now on; by the default one after None."""
    _of_cpu[:] = [] if group is None else [group]


def _together() -> bool:
    return dist.is_available() and dist.is_initialized() and not _alone.get()


def _group_of(tensor: Tensor, group: Any) -> Any:
    return _of_cpu[0] if group is None and _of_cpu and tensor.device.type == "cpu" else group


def rank() -> int:
    """This process's number, 0 when it is alone."""
    return dist.get_rank() if _together() else 0


def world_size(group: Any = None) -> int:
    """How many processes there are."""
    return dist.get_world_size(group) if _together() else 1


def sum_(tensor: Tensor, group: Any = None) -> Tensor:
    """The tensor, replaced by its sum over all processes, which get the same bits."""
    if world_size(group) > 1:
        dist.all_reduce(tensor, group=_group_of(tensor, group))
    return tensor


def gather_tensors(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """The tensors of all processes, in the order of ranks; they may differ in their first size."""
    ranks = world_size(group)
    if tensor.dim() == 0:
        parts = [torch.empty_like(tensor) for _ in range(ranks)]
        dist.all_gather(parts, tensor, group=_group_of(tensor, group))
        return parts
    sizes = [int(size) for size in gather_tensors(torch.tensor(len(tensor), device=tensor.device), group)]
    longest = max(sizes)
    # Collectives want the same size of everyone.
    padded = tensor.new_zeros((longest, *tensor.shape[1:]))
    padded[: len(tensor)] = tensor
    parts = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(parts, padded, group=_group_of(tensor, group))
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]
