"""Data-parallel tables: every rank holds a copy, and all copies get the mean gradient of all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from recgrad.embedding.local.engine import LocalEngine
from recgrad.embedding.local.group import DimGroup
from recgrad.embedding.local.layout import (
    BAGS,
    IDS,
    LOOKUP_COLUMNS,
    TABLE,
    VECTOR_STRIDE,
    VECTORS,
)
from recgrad.embedding.local.memory import address_of
from recgrad.embedding.local.pending import SUMMED, Source


def average_gradients(
    engine: LocalEngine, limits: dict[str, float], exchange: dist.ProcessGroup | None = None
) -> None:
    """Replace the waiting gradients of each rank by the mean over the ranks, row by row.

    Each rank sums its own gradients by row, all ranks exchange these sums, and each adds them
    up in the order of ranks: the copies stay the same bit for bit.

    Args:
        engine: the copies on this rank.
        limits: by table, the largest element that a gradient may have before it is summed.
        exchange: what the sums go by; the default group if None.
    """
    ranks = dist.get_world_size()  # a limit is for gradients of the mean; these are not divided yet
    for group in engine.groups.values():
        own = {i: limits[t.name] * ranks for i, t in enumerate(group.tables) if t.name in limits}
        _average(group, own, exchange)


def _average(group: DimGroup, limits: dict[int, float], exchange: dist.ProcessGroup | None) -> None:
    sums = group.reduce(limits)
    keys = _waiting_rows(group)
    group.clear()
    counts = _gather_counts(len(keys), exchange)
    widest = max(counts)
    if widest == 0:
        return
    keys = _gather(keys, widest, counts, exchange)
    sums = _gather(sums, widest, counts, exchange) / len(counts)
    # Sorted by table, and within a table by rank, so that every rank adds up in the same order.
    order = torch.argsort(keys[:, 0], stable=True)
    keys, sums = keys[order], sums[order].contiguous()
    tables, starts = np.unique(keys[:, 0].numpy(), return_index=True)
    rows = np.ascontiguousarray(keys[:, 1].numpy())
    lines = np.zeros((len(tables), LOOKUP_COLUMNS), np.int64)
    lines[:, TABLE] = tables
    lines[:, IDS] = address_of(rows) + 8 * starts
    lines[:, BAGS] = np.diff(starts, append=len(rows))
    lines[:, VECTORS] = sums.data_ptr() + 4 * group.dim * starts
    lines[:, VECTOR_STRIDE] = 4 * group.dim
    group.sources.append(Source(SUMMED, lines, frozenset(tables.tolist()), sums, rows))


def _waiting_rows(group: DimGroup) -> Tensor:
    """[rows, 2] table and row of each summed gradient, as `DimGroup.reduce` has left them."""
    if not group.sources:
        return torch.empty(0, 2, dtype=torch.int64)
    (source,) = group.sources
    rows: Any = source.keep
    return torch.from_numpy(
        np.stack([np.repeat(source.lines[:, TABLE], source.lines[:, BAGS]), rows], axis=1)
    )


def _gather_counts(count: int, exchange: dist.ProcessGroup | None) -> list[int]:
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    dist.all_gather_single(counts, torch.tensor([count]), group=exchange)
    return [int(c) for c in counts.tolist()]


def _gather(own: Tensor, widest: int, counts: list[int], exchange: dist.ProcessGroup | None) -> Tensor:
    """The rows of all ranks, rank after rank."""
    padded = own.new_zeros(widest, own.shape[1])
    padded[: len(own)] = own
    everyone = own.new_empty(len(counts) * widest, own.shape[1])
    dist.all_gather_single(everyone, padded, group=exchange)
    return torch.cat([everyone[i * widest : i * widest + count] for i, count in enumerate(counts)])
