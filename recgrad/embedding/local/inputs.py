"""Ids as the kernels read them, and what a forward pass keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.embedding.local.memory import address_of
from recgrad.embedding.local.transfer import offsets_task
from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import launch
from recgrad.kernels.products import TILES
from recgrad.kernels.simd import LANES

Array = npt.NDArray[Any]


class Bags(NamedTuple):
    """How the bags of a batch are divided among the keys."""

    counts: tuple[int, ...]
    first: Array  # int64 [keys + 1]: the first bag of each key
    total: int


@lru_cache(maxsize=64)
def _bags(counts: tuple[int, ...]) -> Bags:
    first = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=first[1:])
    return Bags(counts, first, int(first[-1]))


class Inputs(NamedTuple):
    """Ids as kernels read them: checked, and with the place of each bag."""

    values: Tensor
    offsets: Array | None  # int64 [bags + 1]; None when every bag holds one id
    weights: Tensor | None
    bags: Bags

    @staticmethod
    def of(ids: Any, keys: Sequence[str], what: str) -> Inputs:
        """Check the shapes of `ids` and find where bags begin."""
        bags = _bags(tuple(ids.bag_counts))
        if len(bags.counts) != len(keys):
            raise ValueError(
                f"{what} must have {len(keys)} features ({', '.join(keys)}), got {len(bags.counts)}"
            )
        values, weights = ids.values, ids.weights
        if values.dtype is not torch.int64 or not values.is_cpu:
            raise ValueError(f"{what}.values must be int64 on the CPU, got {values.dtype}")
        values = values.contiguous()
        if weights is not None:
            weights = weights.detach().to(torch.float32).contiguous()
            if weights.shape != values.shape:
                raise ValueError(
                    f"{what} must have a weight for each id, "
                    f"got {tuple(weights.shape)} for {tuple(values.shape)}"
                )
        offsets = None if ids.single else _offsets(ids.lengths, what)
        ends = bags.total if offsets is None else int(offsets[-1])
        count = values.numel()
        if count != ends or (offsets is not None and len(offsets) != bags.total + 1):
            raise ValueError(f"{what}: lengths must add up to the {count} ids and match bag_counts")
        return Inputs(values, offsets, weights, bags)

    def addresses(self, vectors: int) -> Array:
        """What to add to a line of the lookup matrix that counts from the start of each array."""
        offsets = 0 if self.offsets is None else address_of(self.offsets)
        weights = 0 if self.weights is None else self.weights.data_ptr()
        return np.array((0, self.values.data_ptr(), offsets, weights, 0, 0, vectors, 0), np.int64)


def _offsets(lengths: Tensor, what: str) -> Array:
    counts = lengths.to(torch.int32).contiguous().numpy()
    offsets = np.empty(len(counts) + 1, np.int64)
    negative = np.zeros(1, np.int64)
    kernel = compiled(offsets_task)
    launch(kernel, counts, len(counts), offsets, negative, tasks=1)
    if negative[0]:
        raise ValueError(f"{what}: lengths must not be negative, got {int(counts.min())}")
    return offsets


def new_block(rows: int, width: int, room: int) -> Tensor:
    """[rows, width], to be written; with `room`, that many columns of memory lie before each row.

    Then rows are an odd number of cache lines apart, and there are some more, as networks like to read them.
    """
    if not room:
        return torch.empty(rows, width)
    lines = -(-(room + width) // LANES) | 1
    return torch.empty(rows + TILES.slack + 1, LANES * lines)[:rows, room : room + width]


@dataclass(slots=True)
class Result:
    """The outputs of one forward pass for one dim, and what its backward needs."""

    block: Tensor | None  # [rows, pooled lookups · dim]
    sequences: dict[int, Tensor]  # [positions, dim] by column
    lookups: Array  # [columns, LOOKUP_COLUMNS]; unused columns have BAGS −1
    inputs: tuple[Inputs | None, Inputs | None]  # kept alive: `lookups` holds addresses
    dim: int
    rows: Any = None  # row numbers that keys were translated to
    room: int = 0  # columns before the block that are free in every row

    def output(self, first: int, last: int) -> Tensor:
        """The outputs of columns first … last − 1 side by side."""
        if first in self.sequences:
            return self.sequences[first]
        if self.block is None:
            raise ValueError("this forward pass was given no ids for that lookup")
        if (last - first) * self.dim == self.block.shape[1]:
            return self.block
        return self.block[:, first * self.dim : last * self.dim]
