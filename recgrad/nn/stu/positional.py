"""Where and when tokens are: what is added to them before the first layer."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.limits import Count, Positive, Size
from recgrad.nn.stu.tokens import Tokens

_FLOOR = 1e-6


class PositionalEncoder(nn.Module):
    """x·√D + P[position] (+ T[bucket of the time before the row's anchor]).

    Without times, positions count from the row's beginning, and all candidates have the place behind the
    history. With times they count backwards from the candidates, which have place C, so that the newest
    history has C + 1; contextual tokens keep their own places 0 … C − 1. Both stop at the last bucket.

        bucket = ⌊clamp(f(max(Δ, 1e-6) / increments) / n, 0, 1)·n⌋, Δ = anchor − time, n = num_time_buckets

    The anchor is the time of the row's last token, or the time of the request where that is given.

    Args:
        dim: D.
        num_position_buckets: places that have a vector of their own.
        num_time_buckets: n.
        use_time_encoding: whether times count.
        time_bucket_fn: f, sqrt or log.
        time_bucket_increments: seconds of one unit.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_position_buckets: Count,
        num_time_buckets: Size = 0,
        use_time_encoding: bool = False,
        time_bucket_fn: Literal["sqrt", "log"] = "sqrt",
        time_bucket_increments: Positive = 60.0,
    ) -> None:
        super().__init__()
        if use_time_encoding and num_time_buckets < 1:
            raise ValueError("num_time_buckets must be at least 1 with use_time_encoding, got 0")
        self.scale, self.last = math.sqrt(dim), num_position_buckets - 1
        self.positions = _table(num_position_buckets, dim)
        self.buckets = num_time_buckets
        self.use_time_encoding, self.increments = use_time_encoding, time_bucket_increments
        self.function = torch.sqrt if time_bucket_fn == "sqrt" else torch.log
        if use_time_encoding:
            self.times = _table(num_time_buckets + 1, dim)

    def forward(self, tokens: Tokens, query_times: Tensor | None = None) -> Tensor:
        """[tokens, dim]: their vectors with what was added; `query_times` float64 [rows] are anchors."""
        x = tokens.values * self.scale + F.embedding(self.places(tokens), self.positions)
        if not self.use_time_encoding:
            return x
        return x + F.embedding(self.time_buckets(tokens, query_times), self.times)

    def places(self, tokens: Tokens) -> Tensor:
        """int64 [tokens]: the place whose vector each token gets."""
        place, rows = tokens.segments.places(), tokens.segments.inside()
        if torch.compiler.is_exporting():
            place = place.clamp(min=0)  # of places that belong to no row
        ends = tokens.history_ends().index_select(0, rows)
        if not self.use_time_encoding:
            return torch.minimum(place, ends.clamp(max=self.last))
        backwards = (tokens.contextual + ends - torch.minimum(place, ends)).clamp(max=self.last)
        return torch.where(place < tokens.contextual, place.clamp(max=self.last), backwards)

    def time_buckets(self, tokens: Tokens, query_times: Tensor | None = None) -> Tensor:
        """int64 [tokens]: the bucket of each token's time."""
        segments = tokens.segments
        if query_times is None:
            last = (segments.offsets + segments.lengths - 1).clamp(min=0).index_select(0, segments.inside())
            anchors = tokens.times.index_select(0, last)
        else:
            anchors = query_times.index_select(0, segments.inside())
        apart = (anchors - tokens.times).clamp(min=_FLOOR) / self.increments
        return ((self.function(apart) / self.buckets).clamp(0, 1) * self.buckets).long()


def _table(rows: int, dim: int) -> nn.Parameter:
    bound = math.sqrt(1 / rows)
    return nn.Parameter(torch.empty(rows, dim).uniform_(-bound, bound))
