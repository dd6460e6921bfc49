"""MaskNet's blocks: features multiplied by a mask that is computed from the features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.limits import Count, Parts, Positive, SettingsOf, keep_limits
from recgrad.nn.mlp import MLP, MLPSettings


@keep_limits
class MaskBlock(nn.Module):
    """relu(layer_norm(linear(x ∘ mask))) with mask = linear(relu(linear(features))).

    Args:
        width: of x.
        mask_width: of the features that make the mask.
        hidden_dim: of the output.
        reduction_ratio: hidden width of the mask over the width of x.
        aggregation_dim: hidden width of the mask, instead of a ratio other than 1.
    """

    def __init__(
        self,
        width: int,
        mask_width: int,
        *,
        hidden_dim: Count,
        reduction_ratio: Positive = 1.0,
        aggregation_dim: int | None = None,
    ) -> None:
        super().__init__()
        if reduction_ratio != 1 and aggregation_dim is not None:
            raise ValueError(
                "reduction_ratio and aggregation_dim exclude each other, "
                f"got {reduction_ratio} and {aggregation_dim}"
            )
        if aggregation_dim is None:
            aggregation_dim = int(width * reduction_ratio)
        if aggregation_dim < 1:
            raise ValueError(f"the mask's hidden width must be at least 1, got {aggregation_dim}")
        self.aggregate = nn.Linear(mask_width, aggregation_dim)
        self.project = nn.Linear(aggregation_dim, width)
        self.hidden = nn.Linear(width, hidden_dim)
        self.norm = nn.LayerNorm(hidden_dim)

    def forward(self, x: Tensor, features: Tensor) -> Tensor:
        """[rows, hidden_dim] of x [rows, width] and features [rows, mask_width]."""
        mask = self.project(F.relu_(self.aggregate(features)))
        return F.relu_(self.norm(self.hidden(x * mask)))


@keep_limits
class MaskNet(nn.Module):
    """Mask blocks side by side on layer-normed features, or one after another.

    Wang et al. 2021, https://arxiv.org/abs/2102.07619

    Args:
        width: of the features.
        n_mask_blocks: number of blocks.
        mask_block: arguments of a `MaskBlock`.
        top_mlp: arguments of the MLP after the blocks; none for none.
        use_parallel: side by side, their outputs concatenated; else each works on the one before.
    """

    def __init__(
        self,
        width: int,
        n_mask_blocks: Parts,
        mask_block: Annotated[Mapping[str, Any], SettingsOf(MaskBlock)],
        top_mlp: MLPSettings | None = None,
        use_parallel: bool = True,
    ) -> None:
        super().__init__()
        self.use_parallel = use_parallel
        self.norm = nn.LayerNorm(width)
        hidden = mask_block["hidden_dim"]
        widths = [width] + [width if use_parallel else hidden] * (n_mask_blocks - 1)
        self.blocks = nn.ModuleList(MaskBlock(own, width, **mask_block) for own in widths)
        after = hidden * n_mask_blocks if use_parallel else hidden
        self.top = MLP(after, **(top_mlp or {}))
        self.out_features = self.top.out_features

    def forward(self, features: Tensor) -> Tensor:
        """[rows, out_features] of features [rows, width]."""
        x = self.norm(features)
        if self.use_parallel:
            x = torch.cat([block(x, features) for block in self.blocks], dim=1)
        else:
            for block in self.blocks:
                x = block(x, features)
        return self.top(x)  # type: ignore[no-any-return]


MaskNetSettings = Annotated[Mapping[str, Any], SettingsOf(MaskNet)]
