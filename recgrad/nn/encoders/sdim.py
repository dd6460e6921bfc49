"""Sums of the positions of a long history that fall into the query's hash buckets (SDIM).

```
                                ┌──▶ q's bucket of group 1 ──▶ Σ s in it ──▶ / ‖·‖ ──┐
positions s ──▶ sign(s·planes) ─┤                                …                   ├──▶ mean ──▶ output
                                └──▶ q's bucket of group G ──▶ Σ s in it ──▶ / ‖·‖ ──┘
query q ──────▶ sign(q·planes) ────▶ which bucket of each group
```
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from recgrad.limits import Count, Range
from recgrad.nn.encoders.base import ENCODERS, SequenceEncoder, check_query
from recgrad.nn.jagged import Segments
from recgrad.nn.long_history import bucket_sums


@ENCODERS.register("sdim_encoder")
class SDIMEncoder(SequenceEncoder):
    """mean_g Σ_{t: h_g(s_t) = h_g(q)} s_t / ‖·‖ over groups g of `hash_width` random hyperplanes each.

    Two vectors at angle θ are in the same bucket with probability (1 − θ/π)^hash_width, so the sum is an
    attention whose weights fall with the angle, at the cost of one multiplication a position; nothing but
    embeddings is learned. An empty bucket gives 0. A query narrower than the sequence is filled up
    with zeros.

    Paper: Cao et al. 2022, https://arxiv.org/abs/2205.10249

    Args:
        query_dim: width of the query, at most sequence_dim.
        sequence_dim: width of a position.
        num_hashes: hyperplanes, a multiple of hash_width.
        hash_width: hyperplanes of a group.
        max_seq_length: only the first so many positions are used; 0 for all.
    """

    planes: Tensor

    def __init__(
        self,
        query_dim: int,
        sequence_dim: int,
        num_hashes: Annotated[int, Range("[1, 64]")] = 48,
        hash_width: Count = 3,
        max_seq_length: int = 0,
    ) -> None:
        super().__init__(query_dim, sequence_dim, max_seq_length)
        check_query("sdim_encoder", query_dim, sequence_dim)
        if num_hashes % hash_width:
            raise ValueError(f"num_hashes must be a multiple of hash_width {hash_width}, got {num_hashes}")
        self.hash_width, self.out_features = hash_width, sequence_dim
        self.register_buffer("planes", torch.randn(sequence_dim, num_hashes))

    def encode(self, query: Tensor, sequence: Tensor, segments: Segments) -> Tensor:
        """[rows, sequence_dim] of query [rows, query_dim] over sequence [positions, sequence_dim]."""
        wide = F.pad(query, (0, self.sequence_dim - self.query_dim))
        sums = bucket_sums(wide, sequence, self.planes, segments, self.hash_width)
        return F.normalize(sums, dim=2).mean(1)
