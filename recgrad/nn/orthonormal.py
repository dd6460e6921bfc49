"""Matrices whose columns are orthonormal at all times."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Orthonormal(nn.Module):
    """A learned matrix [rows, columns], columns < rows, with orthonormal columns.

    What is learned is any matrix; calling the module orthonormalises it, column after column (Gram–Schmidt,
    each step twice, which is enough for full accuracy), by plain multiplications that every
    device and exporter knows. Starts uniformly over all such matrices.

    Args:
        rows: of the matrix.
        columns: of the matrix.
    """

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        if not 0 < columns < rows:
            raise ValueError(f"low_rank_dim must be at least 1 and below {rows}, got {columns}")
        self.weight = nn.Parameter(torch.empty(rows, columns))
        nn.init.orthogonal_(self.weight)

    def forward(self) -> Tensor:
        """The matrix."""
        done: list[Tensor] = []
        for column in self.weight.unbind(1):
            for _ in range(2 if done else 0):
                basis = torch.stack(done)
                column = column - (basis @ column) @ basis
            done.append(column / column.norm())
        return torch.stack(done, dim=1)
