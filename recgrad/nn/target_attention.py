"""Multi-head attention of a query over a few chosen positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class TargetAttention(nn.Module):
    """[softmax_t(⟨Q_h q, K_h s_t⟩/√width) · V_h s_t over heads h], t over the chosen positions of a row.

    A row without any gives 0.

    Args:
        query_dim: width of q.
        sequence_dim: width of a position.
        dim: width of the output, all heads together.
        heads: number of heads; must divide dim.
    """

    def __init__(self, query_dim: int, sequence_dim: int, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"multihead_attn_dim must be a multiple of num_heads {heads}, got {dim}")
        self.heads, self.width, self.out_features = heads, dim // heads, dim
        self.query = nn.Linear(query_dim, dim)
        # A bias of the keys would shift all scores of a row alike, which softmax does not see.
        self.key = nn.Linear(sequence_dim, dim, bias=False)
        self.value = nn.Linear(sequence_dim, dim)

    def forward(self, query: Tensor, sequence: Tensor, chosen: Tensor) -> Tensor:
        """[rows, dim] of query [rows, query_dim] over the positions `chosen` [rows, k], −1 for none."""
        rows, limit = chosen.shape
        exists = (chosen >= 0).unsqueeze(1)
        positions = sequence.index_select(0, chosen.clamp(min=0).flatten())
        keys = self.key(positions).view(rows, limit, self.heads, self.width).permute(0, 2, 3, 1)
        values = self.value(positions).view(rows, limit, self.heads, self.width).transpose(1, 2)
        queries = self.query(query).view(rows, self.heads, 1, self.width) / math.sqrt(self.width)
        scores = (queries @ keys).squeeze(2)
        scores = scores.masked_fill(~exists, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=2) * exists
        attended: Tensor = weights.unsqueeze(2) @ values
        return attended.reshape(rows, self.out_features)
