"""WuKong's layer: a factorization-machine block and a linear compression, with a residual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from recgrad.limits import Count, SettingsOf, keep_limits
from recgrad.nn.mlp import MLP, MLPSettings


class LinearCompression(nn.Module):
    """Mixes fields linearly: y[o] = Σ_i W[o,i] x[i]. W starts Kaiming-uniform.

    Args:
        fields: number of fields before.
        outputs: number of fields after.
    """

    def __init__(self, fields: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, fields))
        nn.init.kaiming_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, outputs, dim] of x [rows, fields, dim]."""
        return torch.matmul(self.weight, x)


class FactorizationBlock(nn.Module):
    """New fields from products of fields: mlp(layer_norm(X (XᵀY))) with Y [fields, k] learned.

    X Xᵀ Y is the matrix of all dot products compressed to k columns, computed from the right so
    that the matrix itself is never formed.

    Args:
        fields: number of fields.
        dim: width of a field.
        outputs: number of new fields.
        compressed_feature_num: k.
        feature_num_mlp: arguments of the MLP; a linear layer to the new fields follows.
    """

    def __init__(
        self,
        fields: int,
        dim: int,
        outputs: int,
        compressed_feature_num: int,
        feature_num_mlp: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.outputs, self.dim = outputs, dim
        self.compress = nn.Parameter(torch.empty(fields, compressed_feature_num))
        nn.init.kaiming_uniform_(self.compress)
        self.norm = nn.LayerNorm(fields * compressed_feature_num)
        self.mlp = MLP(fields * compressed_feature_num, **feature_num_mlp)
        self.output = nn.Linear(self.mlp.out_features, outputs * dim)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, outputs, dim] of x [rows, fields, dim]."""
        products = torch.bmm(x, torch.matmul(x.transpose(1, 2), self.compress))
        hidden = self.mlp(self.norm(products.flatten(1)))
        return self.output(hidden).view(-1, self.outputs, self.dim)  # type: ignore[no-any-return]


@keep_limits
class WuKongLayer(nn.Module):
    """layer_norm([FM block, linear compression] + residual).

    The residual is the input itself, or its linear compression where the number of fields changes.
    Zhang et al. 2024, https://arxiv.org/abs/2403.02545

    Args:
        fields: number of fields.
        dim: width of a field.
        lcb_feature_num: fields of the linear compression.
        fmb_feature_num: fields of the FM block.
        compressed_feature_num: columns that the FM block keeps of its products.
        feature_num_mlp: arguments of the FM block's MLP.
    """

    def __init__(
        self,
        fields: int,
        dim: int,
        *,
        lcb_feature_num: Count,
        fmb_feature_num: Count,
        feature_num_mlp: MLPSettings,
        compressed_feature_num: Count = 16,
    ) -> None:
        super().__init__()
        self.out_fields = lcb_feature_num + fmb_feature_num
        self.linear = LinearCompression(fields, lcb_feature_num)
        self.products = FactorizationBlock(
            fields, dim, fmb_feature_num, compressed_feature_num, feature_num_mlp
        )
        changed = fields != self.out_fields
        self.residual = LinearCompression(fields, self.out_fields) if changed else nn.Identity()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, out_fields, dim] of x [rows, fields, dim]."""
        both = torch.cat([self.products(x), self.linear(x)], dim=1)
        return self.norm(both + self.residual(x))  # type: ignore[no-any-return]


WuKongLayerSettings = Annotated[Mapping[str, Any], SettingsOf(WuKongLayer)]
