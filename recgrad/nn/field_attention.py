"""Self-attention over the fields of a row."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FieldAttention(nn.Module):
    """relu([Σ_k softmax_k(⟨Q_h v_m, K_h v_k⟩) · V_h v_k over heads h] + R v_m) for every field m.

    Song et al. 2019, https://arxiv.org/abs/1810.11921

    Args:
        in_features: width of a field.
        out_features: width of the output of a field, all heads side by side.
        heads: number of heads; must divide out_features.
        use_residual: whether R v_m is added.
        use_scale: products are divided by √(width of a head).
        dropout: share of attention weights dropped in training.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        heads: int,
        *,
        use_residual: bool = True,
        use_scale: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if out_features % heads:
            raise ValueError(f"attention_dim must be a multiple of num_heads {heads}, got {out_features}")
        self.heads, self.out_features = heads, out_features
        self.scale = 1 / math.sqrt(out_features // heads) if use_scale else 1.0
        self.use_residual = use_residual
        # Queries, keys, values and the residual in one multiplication.
        self.project = nn.Linear(in_features, (3 + use_residual) * out_features, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, fields: Tensor) -> Tensor:
        """[rows, fields, out_features] of fields [rows, fields, in_features]."""
        rows, count, _ = fields.shape
        projected = self.project(fields).split(self.out_features, dim=2)
        query, key, value = (self._heads(p) for p in projected[:3])
        weights = torch.softmax((query * self.scale) @ key.transpose(2, 3), dim=3)
        attended = (self.dropout(weights) @ value).transpose(1, 2).reshape(rows, count, self.out_features)
        return F.relu(attended + projected[3] if self.use_residual else attended)

    def _heads(self, x: Tensor) -> Tensor:
        """x [rows, fields, out_features] as [rows, heads, fields, width of a head]."""
        rows, count, width = x.shape
        return x.reshape(rows, count, self.heads, width // self.heads).transpose(1, 2)
