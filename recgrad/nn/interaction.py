"""Dot products of all pairs of fields."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DotInteraction(nn.Module):
    """⟨v_i, v_j⟩ for all i < j of fields v [rows, fields, dim], as [rows, fields·(fields−1)/2].

    One batched multiplication and a gather; going back a gather again and one multiplication,
    since the matrix of pairs is symmetric.

    Args:
        fields: number of fields.
    """

    pairs: Tensor
    cells: Tensor

    def __init__(self, fields: int) -> None:
        super().__init__()
        first, second = torch.triu_indices(fields, fields, offset=1)
        self.out_features = fields * (fields - 1) // 2
        # The pair of each cell of the matrix; the diagonal points at a column of zeros after the last pair.
        cells = torch.full((fields, fields), self.out_features)
        cells[first, second] = cells[second, first] = torch.arange(self.out_features)
        self.register_buffer("pairs", first * fields + second, persistent=False)
        self.register_buffer("cells", cells.flatten(), persistent=False)

    def forward(self, fields: Tensor) -> Tensor:
        """The products, ordered (0,1), (0,2), …, (1,2), …"""
        products: Tensor = _Dot.apply(fields, self.pairs, self.cells)  # type: ignore[no-untyped-call]
        return products


class _Dot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fields: Tensor, pairs: Tensor, cells: Tensor) -> Tensor:
        ctx.save_for_backward(fields, cells)
        return torch.bmm(fields, fields.transpose(1, 2)).flatten(1).index_select(1, pairs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        fields, cells = ctx.saved_tensors
        count = fields.shape[1]
        matrix = F.pad(grad, (0, 1)).index_select(1, cells).view(-1, count, count)
        return torch.bmm(matrix, fields), None, None
