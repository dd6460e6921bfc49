"""Ids as the kernels read them, and what a forward pass keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.embedding.local.compile import simple_kernel
from recgrad.embedding.local.parallel import launch

Array = npt.NDArray[Any]


def address_of(array: Array) -> int:
    """Where an array begins."""
    address: int = array.__array_interface__["data"][0]
    return address


@dataclass(frozen=True)
class Inputs:
    """Ids as kernels read them: checked, and with the place of each bag."""

    values: Array
    offsets: Array | None  # int64 [bags + 1]; None when every bag holds one id
    weights: Array | None
    first_bags: Array  # int64 [keys + 1]: the first bag of each key

    @staticmethod
    def of(ids: Any, keys: Sequence[str], what: str) -> Inputs:
        """Check the shapes of `ids` and find where bags begin."""
        counts = np.array(ids.bag_counts, dtype=np.int64)
        if len(counts) != len(keys):
            raise ValueError(f"{what} must have {len(keys)} features ({', '.join(keys)}), got {len(counts)}")
        if ids.values.dtype != torch.int64 or ids.values.device.type != "cpu":
            raise ValueError(f"{what}.values must be int64 on the CPU, got {ids.values.dtype}")
        first_bags = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=first_bags[1:])
        values = ids.values.contiguous().numpy()
        weights = None
        if ids.weights is not None:
            weights = ids.weights.detach().to(torch.float32).contiguous().numpy()
            if weights.shape != values.shape:
                raise ValueError(
                    f"{what} must have a weight for each id, got {weights.shape} for {values.shape}"
                )
        offsets = None if ids.single else _offsets(ids.lengths, what)
        ends = int(first_bags[-1]) if offsets is None else int(offsets[-1])
        if len(values) != ends or (offsets is not None and len(offsets) != first_bags[-1] + 1):
            raise ValueError(f"{what}: lengths must add up to the {len(values)} ids and match bag_counts")
        return Inputs(values, offsets, weights, first_bags)


def _offsets(lengths: Tensor, what: str) -> Array:
    counts = lengths.to(torch.int32).contiguous().numpy()
    offsets = np.empty(len(counts) + 1, np.int64)
    negative = np.zeros(1, np.int64)
    kernel = simple_kernel("recgrad.embedding.local.transfer", "offsets_task")
    launch(kernel, counts, len(counts), offsets, negative, tasks=1)
    if negative[0]:
        raise ValueError(f"{what}: lengths must not be negative, got {int(counts.min())}")
    return offsets


@dataclass
class Result:
    """The outputs of one forward pass for one dim, and what its backward needs."""

    block: Tensor | None  # [rows, pooled lookups · dim]
    sequences: dict[int, Tensor]  # [positions, dim] by column
    lookups: Array  # [columns, LOOKUP_COLUMNS]; unused columns have BAGS −1
    occurrences: Array  # ids of each column
    inputs: tuple[Inputs | None, Inputs | None]  # kept alive: `lookups` holds addresses
    dim: int

    def output(self, first: int, last: int) -> Tensor:
        """The outputs of columns first … last − 1 side by side."""
        if first in self.sequences:
            return self.sequences[first]
        if self.block is None:
            raise ValueError("this forward pass was given no ids for that lookup")
        return self.block[:, first * self.dim : last * self.dim]
