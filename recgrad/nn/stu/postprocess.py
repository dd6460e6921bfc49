"""What is done with the outputs of the last layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.nn.stu.contextual import chosen
from recgrad.nn.stu.tokens import Tokens

_EPS = 1e-6
_PI = 3.14  # as the schema's models have it, so that their weights fit


class L2Norm(nn.Module):
    """x / max(‖x‖, 1e-6)."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, tokens: Tokens) -> Tensor:
        """[tokens, dim]."""
        return F.normalize(tokens.values, dim=1, eps=_EPS)


class LayerNorm(nn.Module):
    """Layer norm."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tokens) -> Tensor:
        """[tokens, dim]."""
        out: Tensor = self.norm(tokens.values)
        return out


class TimestampLayerNorm(nn.Module):
    """LN(W·[x | cos θ₁, sin θ₁, cos θ₂, …]), θ_i = 2·3.14·(⌊time / unit_i⌋ mod period_i) / period_i.

    Args:
        dim: width of tokens.
        time_duration_period_units: the seconds of each unit.
        time_duration_units_per_period: how many units make a period.
    """

    def __init__(
        self,
        dim: int,
        *,
        time_duration_period_units: Sequence[int],
        time_duration_units_per_period: Sequence[int],
    ) -> None:
        super().__init__()
        units, periods = time_duration_period_units, time_duration_units_per_period
        if len(units) != len(periods) or not units or min(*units, *periods) < 1:
            raise ValueError(
                "time_duration_period_units and time_duration_units_per_period must be equally many, one at "
                f"least, each at least 1; got {list(units)} and {list(periods)}"
            )
        self.units: Tensor
        self.periods: Tensor
        self.register_buffer("units", torch.tensor(units, dtype=torch.float64), persistent=False)
        self.register_buffer("periods", torch.tensor(periods, dtype=torch.float64), persistent=False)
        self.linear, self.norm = nn.Linear(dim + 2 * len(units), dim), nn.LayerNorm(dim)

    def forward(self, tokens: Tokens) -> Tensor:
        """[tokens, dim]."""
        phase = torch.floor(tokens.times.unsqueeze(1) / self.units) % self.periods / self.periods
        angle = (2 * _PI * phase).to(tokens.values.dtype)
        waves = torch.stack([angle.cos(), angle.sin()], dim=2).flatten(1)
        out: Tensor = self.norm(self.linear(torch.cat([tokens.values, waves], dim=1)))
        return out


_KINDS: dict[str, Any] = {
    "l2norm_postprocessor": L2Norm,
    "layernorm_postprocessor": LayerNorm,
    "timestamp_layernorm_postprocessor": TimestampLayerNorm,
}


def build_postprocessor(config: Mapping[str, Any], dim: int) -> nn.Module:
    """The postprocessor of a `GROutputPostprocessor`."""
    kind, params = chosen(config, _KINDS, "output_postprocessor")
    built: nn.Module = _KINDS[kind](dim, **params)
    return built
