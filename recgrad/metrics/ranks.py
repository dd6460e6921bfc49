"""The processes that measure together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_alone: ContextVar[bool] = ContextVar("alone", default=False)


@contextmanager
def measuring_alone() -> Iterator[None]:
    """In here this process measures by itself, while the others of its group do something else."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def _together() -> bool:
    return dist.is_available() and dist.is_initialized() and not _alone.get()


def rank() -> int:
    """This process's number, 0 when it is alone."""
    return dist.get_rank() if _together() else 0


def world_size(group: Any = None) -> int:
    """How many processes there are."""
    return dist.get_world_size(group) if _together() else 1


def gather_tensors(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """The tensors of all processes, in the order of ranks; they may differ in their first size."""
    ranks = world_size(group)
    if tensor.dim() == 0:
        parts = [torch.empty_like(tensor) for _ in range(ranks)]
        dist.all_gather(parts, tensor, group=group)
        return parts
    sizes = [int(size) for size in gather_tensors(torch.tensor(len(tensor), device=tensor.device), group)]
    longest = max(sizes)
    # Collectives want the same size of everyone.
    padded = tensor.new_zeros((longest, *tensor.shape[1:]))
    padded[: len(tensor)] = tensor
    parts = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(parts, padded, group=group)
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]
