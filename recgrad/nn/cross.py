"""Cross networks: explicit products of bounded degree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from recgrad.limits import Count, Parts, SettingsOf, keep_limits


@keep_limits
class Cross(nn.Module):
    """x_{l+1} = x_0·⟨w_l, x_l⟩ + b_l + x_l, the cross network of DCN.

    w starts Xavier-uniform, b at 0. Wang et al. 2017, https://arxiv.org/abs/1708.05123

    Args:
        width: of x.
        cross_num: number of layers.
    """

    def __init__(self, width: int, cross_num: Parts = 3) -> None:
        super().__init__()
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


CrossSettings = Annotated[Mapping[str, Any], SettingsOf(Cross)]


@keep_limits
class CrossV2(nn.Module):
    """x_{l+1} = x_0 ∘ (V_l U_l x_l + b_l) + x_l, the low-rank cross network of DCN V2.

    Weights start as linear layers do. Wang et al. 2021, https://arxiv.org/abs/2008.13535

    Args:
        width: of x.
        cross_num: number of layers.
        low_rank: rank of V·U.
    """

    def __init__(self, width: int, cross_num: Parts = 3, low_rank: Count = 32) -> None:
        super().__init__()
        self.out_features = width
        self.down = nn.ModuleList(nn.Linear(width, low_rank, bias=False) for _ in range(cross_num))
        self.up = nn.ModuleList(nn.Linear(low_rank, width) for _ in range(cross_num))

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width]."""
        start = x
        for down, up in zip(self.down, self.up, strict=True):
            x = torch.addcmul(x, start, up(down(x)))
        return x


CrossV2Settings = Annotated[Mapping[str, Any], SettingsOf(CrossV2)]


@keep_limits
class GatedCross(nn.Module):
    """x_{l+1} = x_0 ∘ (W_l x_l + b_l) ∘ sigmoid(V_l x_l) + x_l: crosses that pass a gate.

    Wang et al. 2023, https://arxiv.org/abs/2311.04635

    Args:
        in_features: width of x.
        cross_num: number of layers.
    """

    def __init__(self, in_features: int, cross_num: Parts = 3) -> None:
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
