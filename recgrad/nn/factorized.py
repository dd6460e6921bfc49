"""FINAL's layers: products of two linear maps, and gates of fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from recgrad.nn.activation import build_activation
from recgrad.nn.mlp import BatchNorm, dropout_ratios

ResidualType = Literal["concat", "sum"]


class FactorizedMLP(nn.Module):
    """Like an `MLP`, with [a, a∘b] or a + a∘b of two linear maps a, b in the place of each linear layer.

    Each layer doubles the degree of the products that the block can express.
    Zhu et al. 2023, https://doi.org/10.1145/3539618.3591988

    Args:
        in_features: width of the input.
        hidden_units: width of each layer.
        residual_type: "concat" has half a layer's width from a and half from a∘b, so the widths must be
            even and there are as many weights as in an MLP; "sum" has twice as many.
        activation, dropout_ratio, use_bn, use_ln, bias: as `MLP` takes them.
    """

    def __init__(
        self,
        in_features: int,
        hidden_units: Sequence[int],
        *,
        residual_type: ResidualType = "concat",
        activation: str = "nn.ReLU",
        dropout_ratio: Sequence[float] | float = (),
        use_bn: bool = False,
        use_ln: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if use_bn and use_ln:
            raise ValueError("use_bn and use_ln exclude each other, got both")
        if not hidden_units or min(hidden_units) < 1:
            raise ValueError(f"hidden_units must be widths of at least 1, got {list(hidden_units)}")
        self.concat = residual_type == "concat"
        if self.concat and any(units % 2 for units in hidden_units):
            raise ValueError(f"hidden_units must be even with residual_type concat, got {list(hidden_units)}")
        self.linears, self.afters = nn.ModuleList(), nn.ModuleList()
        width = in_features
        for units, ratio in zip(hidden_units, dropout_ratios(dropout_ratio, len(hidden_units)), strict=True):
            self.linears.append(nn.Linear(width, units if self.concat else 2 * units, bias=bias))
            norm = BatchNorm(units) if use_bn else nn.LayerNorm(units) if use_ln else None
            after = (norm, build_activation(activation, units), nn.Dropout(ratio) if ratio > 0 else None)
            self.afters.append(nn.Sequential(*(module for module in after if module is not None)))
            width = units
        self.out_features = width

    def forward(self, x: Tensor) -> Tensor:
        """[rows, out_features] of x [rows, in_features]."""
        for linear, after in zip(self.linears, self.afters, strict=True):
            a, b = linear(x).chunk(2, dim=1)
            x = after(torch.cat([a, a * b], dim=1) if self.concat else torch.addcmul(a, a, b))
        return x


class FieldGate(nn.Module):
    """Fields, and beside them the fields multiplied by gates: [rows, 2 · fields, dim].

    The gate of a column is a linear map of the same column of all fields; it starts as 1.

    Args:
        fields: number of fields.
    """

    def __init__(self, fields: int) -> None:
        super().__init__()
        self.linear = nn.Linear(fields, fields)
        nn.init.zeros_(self.linear.weight)
        nn.init.ones_(self.linear.bias)

    def forward(self, fields: Tensor) -> Tensor:
        """The fields [rows, fields, dim] and the gated ones."""
        gates = self.linear(fields.transpose(1, 2)).transpose(1, 2)
        return torch.cat([fields, fields * gates], dim=1)
