"""Buckets of differences of times, ever wider."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_CELLS = 8  # of each power of two, for the guess
_POWERS = 64


@dataclass(frozen=True)
class TimeBuckets:
    """bucket(Δ) = min(⌊ln(max(|Δ|, 1)) / step⌋, count).

    Attributes:
        count: the last bucket, so that there are count + 1.
        step: each bucket is e^step times as wide as the one before.
    """

    count: int = 128
    step: float = 0.301

    def __post_init__(self) -> None:
        if not self.step >= 0.15:  # a cell of the guess may have one bound at most
            raise ValueError(f"step must be at least 0.15, got {self.step}")

    def bounds(self) -> npt.NDArray[np.float64]:
        """float64 [count + 2]: where each bucket begins, and infinity."""
        begins: npt.NDArray[np.float64] = np.exp(np.arange(self.count + 1) * self.step)
        return np.append(begins, np.inf)

    @cached_property
    def arrays(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32]]:
        """The bounds, and by leading bits of a float64 ≥ 1 the bucket of the smallest number with them."""
        bounds = self.bounds()
        cells = np.arange(_POWERS * _CELLS)
        smallest = np.ldexp(1 + cells % _CELLS / _CELLS, cells // _CELLS)
        guesses = np.clip(np.searchsorted(bounds, smallest, side="right") - 1, 0, self.count)
        return bounds, guesses.astype(np.int32)

    def of(self, delta: Tensor) -> Tensor:
        """int64 buckets of float64 differences."""
        apart = delta.abs().clamp(min=1.0, max=4e18)
        if torch.compiler.is_exporting():  # runtimes have no search
            return (apart.log() / self.step).floor().long().clamp(max=self.count)
        bounds = torch.from_numpy(self.bounds()).to(delta.device)
        return (torch.searchsorted(bounds, apart.contiguous(), right=True) - 1).clamp(max=self.count)


def log_bucket(delta: float, step: float = 0.301, count: int = 128) -> int:
    """The bucket of one difference, by the formula."""
    return min(math.floor(math.log(max(abs(delta), 1)) / step), count)
