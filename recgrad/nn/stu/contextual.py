"""Contextual tokens, and layers whose weights the context of a row decides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from recgrad.limits import Count, Fraction, keep_limits
from recgrad.nn.jagged import Segments, pad


class SwishLayerNorm(nn.Module):
    """x·σ(LN(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        return x * torch.sigmoid(self.norm(x))


def xavier_linear(in_features: int, out_features: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer with Xavier-uniform weights and a bias of 0."""
    layer = nn.Linear(in_features, out_features, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class ContextualTokens(nn.Module):
    """Token k of a row is x_k·W_k + b_k, with weights of its own for each contextual feature.

    Args:
        count: C, the number of features.
        width: of each feature.
        dim: of the tokens.
    """

    def __init__(self, count: int, width: int, dim: int) -> None:
        super().__init__()
        std = math.sqrt(2 / (width + dim))
        self.weight = nn.Parameter(torch.empty(count, width, dim).normal_(std=std))
        self.bias = nn.Parameter(torch.zeros(count, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        """[rows · C, dim] of x [rows, C · width]."""
        count, width, dim = self.weight.shape
        by_feature = x.view(-1, count, width).transpose(0, 1)
        return torch.baddbmm(self.bias, by_feature, self.weight).transpose(0, 1).reshape(-1, dim)


class SimpleMLP(nn.Module):
    """LN(W₂·swishLN(W₁·x)), the same for every row."""

    def __init__(self, in_features: int, dim: int, contextual_dim: int, *, hidden_dim: Count) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            xavier_linear(in_features, hidden_dim),
            SwishLayerNorm(hidden_dim),
            xavier_linear(hidden_dim, dim),
            nn.LayerNorm(dim),
        )

    def forward(self, x: Tensor, segments: Segments, contextual: Tensor | None) -> Tensor:
        """[positions, dim]."""
        out: Tensor = self.layers(x)
        return out


class ParameterizedMLP(nn.Module):
    """x·A_b + r_b with the matrix A_b = LN(W_a·h) and r_b = W₂·swishLN(W₁·h), h = W·drop(a row's context)."""

    def __init__(
        self,
        in_features: int,
        dim: int,
        contextual_dim: int,
        *,
        hidden_dim: Count,
        contextual_dropout_ratio: Fraction = 0.3,
    ) -> None:
        super().__init__()
        if contextual_dim < 1:
            raise ValueError("parameterized_mlp needs contextual features; add them, or take simple_mlp")
        self.shape = (in_features, dim)
        self.dropout = nn.Dropout(contextual_dropout_ratio)
        self.compress = xavier_linear(contextual_dim, hidden_dim)
        self.attention = xavier_linear(hidden_dim, in_features * dim)
        self.attention_norm = nn.LayerNorm(self.shape)
        self.residual = nn.Sequential(
            xavier_linear(hidden_dim, hidden_dim), SwishLayerNorm(hidden_dim), xavier_linear(hidden_dim, dim)
        )

    def forward(self, x: Tensor, segments: Segments, contextual: Tensor | None) -> Tensor:
        """[positions, dim]."""
        assert contextual is not None
        hidden = self.compress(self.dropout(contextual))
        weights = self.attention_norm(self.attention(hidden).view(-1, *self.shape))
        residual = self.residual(hidden)
        # Rows come twice where the history stands before the candidates.
        if torch.compiler.is_exporting():
            rows = torch.arange(contextual.shape[0])
            again = torch.cat([rows, rows])[: segments.lengths.shape[0]]
            residual, weights = residual.index_select(0, again), weights.index_select(0, again)
        else:
            times = segments.lengths.shape[0] // max(contextual.shape[0], 1)
            residual, weights = residual.repeat(times, 1), weights.repeat(times, 1, 1)
        padded = pad(x, segments)
        out = torch.baddbmm(residual.unsqueeze(1), padded, weights).flatten(0, 1)
        return out.index_select(0, segments.inside() * padded.shape[1] + segments.places())


_KINDS = {"simple_mlp": SimpleMLP, "parameterized_mlp": ParameterizedMLP}


def build_contextualized_mlp(
    config: Mapping[str, Any], in_features: int, dim: int, contextual_dim: int
) -> SimpleMLP | ParameterizedMLP:
    """The MLP of a `GRContextualizedMLP`: one of its members with arguments."""
    kind, params = chosen(config, _KINDS, "an MLP")
    built: SimpleMLP | ParameterizedMLP = keep_limits(_KINDS[kind])(
        in_features, dim, contextual_dim, **params
    )
    return built


def chosen(config: Mapping[str, Any], kinds: Mapping[str, Any], what: str) -> tuple[str, dict[str, Any]]:
    """The member of a oneof that is set, with its arguments."""
    for kind in kinds:
        if config.get(kind) is not None:
            return kind, dict(config[kind])
    raise ValueError(f"{what} must be one of {', '.join(kinds)}, got none")
