"""What attention computes, and what is added to its scores."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from recgrad.nn.attention.mask import Mask
from recgrad.nn.attention.time_buckets import TimeBuckets


@dataclass(frozen=True)
class Biases:
    """What is added to scores beside q·k; shared by heads.

    Attributes:
        positions: p, [2N − 1], for rows of at most N positions.
        times: w, [buckets].
        key_times: float64 [positions], the time of each key.
        query_times: float64 [positions], the time that each query asks at.
        buckets: which bucket a difference of times falls into.
    """

    positions: Tensor | None = None
    times: Tensor | None = None
    key_times: Tensor | None = None
    query_times: Tensor | None = None
    buckets: TimeBuckets | None = None

    def __post_init__(self) -> None:
        timed = (self.times, self.key_times, self.query_times, self.buckets)
        if len({part is None for part in timed}) > 1:
            raise ValueError("times, key_times, query_times and buckets go together")


@dataclass(frozen=True)
class Setting:
    """What attention computes.

    Attributes:
        kind: "softmax" or "silu".
        heads: number of heads.
        alpha: α.
        divisor: N of "silu".
        mask: which keys each query sees.
        dropout: share of attention weights that are dropped, in training.
    """

    kind: str
    heads: int
    alpha: float
    divisor: float = 1.0
    mask: Mask = field(default_factory=Mask)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("softmax", "silu"):
            raise ValueError(f"kind must be softmax or silu, got {self.kind}")

    @property
    def drop_below(self) -> int:
        """Draws of 32 bits below this are dropped."""
        return math.floor(self.dropout * 2**32)
