"""Bilinear forms: of two vectors, and of all pairs of fields."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

BilinearType = Literal["field_all", "field_each", "field_interaction"]


class BilinearFusion(nn.Module):
    """b + w₁·x + w₂·y + Σ_k xₖᵀ W_k yₖ with x and y in `heads` equal parts.

    Mao et al. 2023, https://arxiv.org/abs/2304.00902

    Args:
        first: width of x.
        second: width of y.
        out_features: width of the output.
        heads: parts; must divide both widths.
    """

    def __init__(self, first: int, second: int, out_features: int, heads: int = 1) -> None:
        super().__init__()
        if first % heads or second % heads:
            raise ValueError(f"num_heads must divide the MLPs' widths {first} and {second}, got {heads}")
        self.heads = heads
        self.linear1 = nn.Linear(first, out_features)
        self.linear2 = nn.Linear(second, out_features, bias=False)
        a, b = first // heads, second // heads
        bound = math.sqrt(6 / (a + b))  # Glorot
        # [heads, out · y, x]: one batched multiplication for all heads and outputs.
        self.weight = nn.Parameter(torch.empty(heads, out_features, b, a).uniform_(-bound, bound))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """[rows, out_features] of x [rows, first] and y [rows, second]."""
        heads, out, b, a = self.weight.shape
        parts = x.view(-1, heads, a).transpose(0, 1)
        mapped = torch.bmm(parts, self.weight.view(heads, out * b, a).transpose(1, 2))
        mapped = mapped.view(heads, -1, out, b)
        products = (mapped * y.view(-1, heads, b).transpose(0, 1).unsqueeze(2)).sum((0, 3))
        return self.linear1(x) + self.linear2(y) + products  # type: ignore[no-any-return]


class PairProducts(nn.Module):
    """(v_i W) ∘ v_j for all i < j of fields v, as [rows, pairs · dim], ordered (0,1), (0,2), …, (1,2), …

    Huang et al. 2019, https://arxiv.org/abs/1905.09433

    Args:
        fields: number of fields.
        dim: width of a field.
        bilinear_type: one W for all pairs, one for each i, or one for each pair.
    """

    first: Tensor
    second: Tensor

    def __init__(self, fields: int, dim: int, bilinear_type: BilinearType = "field_interaction") -> None:
        super().__init__()
        if fields < 2:
            raise ValueError(f"products of pairs need at least 2 fields, got {fields}")
        first, second = torch.triu_indices(fields, fields, offset=1)
        self.out_features = len(first) * dim
        self.of_pairs = bilinear_type == "field_interaction"
        count = {"field_all": 1, "field_each": fields - 1, "field_interaction": len(first)}[bilinear_type]
        bound = math.sqrt(3 / dim)  # Glorot
        self.weight = nn.Parameter(torch.empty(count, dim, dim).uniform_(-bound, bound))
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)

    def forward(self, fields: Tensor) -> Tensor:
        """The products of fields [rows, fields, dim]."""
        if self.of_pairs:
            mapped = _each(fields.index_select(1, self.first), self.weight)
        elif self.weight.shape[0] == 1:
            mapped = (fields @ self.weight[0]).index_select(1, self.first)
        else:
            mapped = _each(fields[:, :-1], self.weight).index_select(1, self.first)
        return (mapped * fields.index_select(1, self.second)).flatten(1)


def _each(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, count, dim] with each of `count` vectors times a matrix of its own."""
    return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)
