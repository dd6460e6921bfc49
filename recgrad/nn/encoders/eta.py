"""Attention over the positions of a long history that hash like the query (ETA).

```
query q ─────┬──▶ sign(q·planes) ───┐ bits that differ
             │                      ├──▶ the top_k nearest ──┐
positions s ─┼──▶ sign(s·planes) ───┘                        │ s of these
             └───────────────────────────────────────────────┴──▶ multi-head attention ──▶ output
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
from recgrad.nn.long_history import nearest
from recgrad.nn.target_attention import TargetAttention


@ENCODERS.register("eta_encoder")
class ETAEncoder(SequenceEncoder):
    """Multi-head attention of the query over the `top_k` positions whose signatures are nearest to its own.

    The signature of a vector is on which side of `num_hashes` random hyperplanes it lies; signatures are
    compared by the number of bits that differ, which grows with the angle between the vectors. So all
    positions are looked at for one multiplication each, and only `top_k` pass through the attention. Of
    equally near ones the first count. A query narrower than the sequence is filled up with zeros.

    Paper: Chen et al. 2021, https://arxiv.org/abs/2108.04468

    Args:
        query_dim: width of the query, at most sequence_dim.
        sequence_dim: width of a position.
        top_k: positions that the attention sees.
        num_hashes: bits of a signature.
        multihead_attn_dim: width of the attention and of the output; a multiple of num_heads.
        num_heads: number of heads.
        max_seq_length: only the first so many positions are used; 0 for all.
    """

    planes: Tensor

    def __init__(
        self,
        query_dim: int,
        sequence_dim: int,
        top_k: Count = 48,
        num_hashes: Annotated[int, Range("[1, 64]")] = 32,
        multihead_attn_dim: Count = 64,
        num_heads: Count = 2,
        max_seq_length: int = 0,
    ) -> None:
        super().__init__(query_dim, sequence_dim, max_seq_length)
        check_query("eta_encoder", query_dim, sequence_dim)
        self.top_k = top_k
        self.register_buffer("planes", torch.randn(sequence_dim, num_hashes))
        self.attention = TargetAttention(query_dim, sequence_dim, multihead_attn_dim, num_heads)
        self.out_features = multihead_attn_dim

    def encode(self, query: Tensor, sequence: Tensor, segments: Segments) -> Tensor:
        """[rows, multihead_attn_dim] of query [rows, query_dim] over sequence [positions, sequence_dim]."""
        if sequence.shape[0] == 0:
            return self.attention(query, sequence.new_zeros(1, self.sequence_dim), _none(query))  # type: ignore[no-any-return]
        wide = F.pad(query, (0, self.sequence_dim - self.query_dim))
        chosen = nearest(wide, sequence, self.planes, segments, self.top_k)
        return self.attention(query, sequence, chosen)  # type: ignore[no-any-return]


def _none(query: Tensor) -> Tensor:
    """No position for any row."""
    return torch.full((query.shape[0], 1), -1, dtype=torch.int64, device=query.device)
