"""Cross networks: explicit products of bounded degree."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Cross(nn.Module):
    """x_{l+1} = x_0·⟨w_l, x_l⟩ + b_l + x_l, the cross network of DCN.

    w starts Xavier-uniform, b at 0. Wang et al. 2017, https://arxiv.org/abs/1708.05123

    Args:
        width: of x.
        cross_num: number of layers.
    """

    def __init__(self, width: int, cross_num: int = 3) -> None:
        super().__init__()
        if cross_num < 1:
            raise ValueError(f"cross_num must be at least 1, got {cross_num}")
        self.out_features = width
        self.weight = nn.Parameter(torch.empty(cross_num, width))
        self.bias = nn.Parameter(torch.zeros(cross_num, width))
        for row in self.weight.unbind():
            nn.init.xavier_uniform_(row.detach().unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width]."""
        start = x
        for weight, bias in zip(self.weight, self.bias, strict=True):
            x = torch.addcmul(x + bias, start, (x @ weight).unsqueeze(1))
        return x


class CrossV2(nn.Module):
    """x_{l+1} = x_0 ∘ (V_l U_l x_l + b_l) + x_l, the low-rank cross network of DCN V2.

    Weights start as linear layers do. Wang et al. 2021, https://arxiv.org/abs/2008.13535

    Args:
        width: of x.
        cross_num: number of layers.
        low_rank: rank of V·U.
    """

    def __init__(self, width: int, cross_num: int = 3, low_rank: int = 32) -> None:
        super().__init__()
        if cross_num < 1 or low_rank < 1:
            raise ValueError(f"cross_num and low_rank must be at least 1, got {cross_num}, {low_rank}")
        self.out_features = width
        self.down = nn.ModuleList(nn.Linear(width, low_rank, bias=False) for _ in range(cross_num))
        self.up = nn.ModuleList(nn.Linear(low_rank, width) for _ in range(cross_num))

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width]."""
        start = x
        for down, up in zip(self.down, self.up, strict=True):
            x = torch.addcmul(x, start, up(down(x)))
        return x


class GatedCross(nn.Module):
    """x_{l+1} = x_0 ∘ (W_l x_l + b_l) ∘ sigmoid(V_l x_l) + x_l: crosses that pass a gate.

    Wang et al. 2023, https://arxiv.org/abs/2311.04635

    Args:
        in_features: width of x.
        cross_num: number of layers.
    """

    def __init__(self, in_features: int, cross_num: int = 3) -> None:
        super().__init__()
        self.out_features = in_features
        self.crosses = nn.ModuleList(nn.Linear(in_features, in_features) for _ in range(cross_num))
        self.gates = nn.ModuleList(nn.Linear(in_features, in_features, bias=False) for _ in range(cross_num))

    def forward(self, x: Tensor) -> Tensor:
        """[rows, in_features] of x [rows, in_features]."""
        start = x
        for cross, gate in zip(self.crosses, self.gates, strict=True):
            x = torch.addcmul(x, start * cross(x), torch.sigmoid(gate(x)))
        return x
