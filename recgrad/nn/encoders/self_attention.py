"""Multi-head self-attention over a sequence."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from recgrad.limits import Count, Share, Size
from recgrad.nn.encoders.base import ENCODERS, SequenceEncoder
from recgrad.nn.jagged import Segments, pad


@ENCODERS.register("self_attention_encoder")
class SelfAttentionEncoder(SequenceEncoder):
    """Multi-head self-attention over the positions of each row, averaged over them.

    Positions are projected to queries, keys and values of width `multihead_attn_dim`, projected once more
    inside the attention as `nn.MultiheadAttention` does, and the outputs of the row's
    positions are averaged. A row without positions gives 0. Vaswani et al. 2017,
    https://arxiv.org/abs/1706.03762

    Args:
        query_dim: width of the query, which is not used.
        sequence_dim: width of a position.
        multihead_attn_dim: width of the attention and of the output; a multiple of num_heads.
        num_heads: number of heads.
        dropout: share of attention weights dropped in training.
        max_seq_length: only the first so many positions are used; 0 for all.
    """

    self_attention: ClassVar[bool] = True

    def __init__(
        self,
        query_dim: int,
        sequence_dim: int,
        multihead_attn_dim: Count = 512,
        num_heads: Count = 8,
        dropout: Share = 0.0,
        max_seq_length: Size = 0,
    ) -> None:
        super().__init__(query_dim, sequence_dim, max_seq_length)
        dim = multihead_attn_dim
        if dim % num_heads:
            raise ValueError(f"multihead_attn_dim {dim} is not a multiple of num_heads {num_heads}")
        self.out_features = dim
        self.query = nn.Linear(sequence_dim, dim)
        # A bias of the keys would shift all scores of a query alike, which softmax does not see.
        self.key = nn.Linear(sequence_dim, dim, bias=False)
        self.value = nn.Linear(sequence_dim, dim)
        self.attention = nn.MultiheadAttention(dim, num_heads, dropout=dropout, batch_first=True)

    def encode(self, query: Tensor, sequence: Tensor, segments: Segments) -> Tensor:
        """[rows, multihead_attn_dim] of sequence [positions, sequence_dim]."""
        rows = segments.lengths.shape[0]
        length = max(segments.longest(), 1)
        padded = pad(sequence, segments, length)
        places = torch.arange(length, device=sequence.device)
        mask = places >= segments.lengths.unsqueeze(1)
        # A row whose every key is masked would be NaN; it may look at its first (zero) position instead,
        # and its output is dropped below.
        mask = mask & (places > 0)
        projected = self.query(padded), self.key(padded), self.value(padded)
        # torch cannot shape a mask of no rows.
        attended, _ = self.attention(*projected, key_padding_mask=mask if rows else None, need_weights=False)
        exists = (places < segments.lengths.unsqueeze(1)).to(attended.dtype)
        mean = exists / segments.lengths.clamp(min=1).unsqueeze(1)
        return torch.bmm(mean.unsqueeze(1), attended).squeeze(1)
