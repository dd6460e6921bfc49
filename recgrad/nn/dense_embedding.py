"""Embeddings of numbers: AutoDis, and one linear layer for each feature."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.limits import Count, Fraction, Positive, keep_limits


@keep_limits
class AutoDis(nn.Module):
    """Soft discretisation of n numbers, each with its own meta-embeddings.

    For each feature h = LeakyReLU(w·x), x̃ = M·h + α·h, e = softmax(x̃ / τ) · E with w [channels],
    M [channels, channels] and meta-embeddings E [channels, dim]; α is `keep_prob`. All features
    run in one batched multiplication. Guo et al. 2021, https://arxiv.org/abs/2012.08986

    All weights start as U(−1/√fan_in, 1/√fan_in).

    Args:
        features: n.
        dim: width of an embedding.
        num_channels: number of meta-embeddings of a feature.
        temperature: τ.
        keep_prob: α.
    """

    def __init__(
        self,
        features: int,
        dim: int,
        num_channels: Count,
        temperature: Positive = 0.1,
        keep_prob: Fraction = 0.8,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.keep_prob = keep_prob
        self.scale = nn.Parameter(_uniform(features, num_channels, fan_in=1))
        self.mix = nn.Parameter(_uniform(features, num_channels, num_channels, fan_in=num_channels))
        self.meta = nn.Parameter(_uniform(features, num_channels, dim, fan_in=num_channels))

    def forward(self, x: Tensor) -> Tensor:
        """[rows, n · dim] of x [rows, n]."""
        hidden = F.leaky_relu(x.t().unsqueeze(2) * self.scale.unsqueeze(1))  # [n, rows, channels]
        mixed = torch.baddbmm(hidden, hidden, self.mix.transpose(1, 2), beta=self.keep_prob)
        embedded = torch.bmm(torch.softmax(mixed / self.temperature, dim=2), self.meta)
        return embedded.transpose(0, 1).flatten(1)


class LinearEmbedding(nn.Module):
    """W_i x_i for n features x_i of equal width, without bias.

    W starts as U(−1/√value_dim, 1/√value_dim).

    Args:
        features: n.
        dim: width of an embedding.
        value_dim: width of a feature.
    """

    def __init__(self, features: int, dim: int, value_dim: int = 1) -> None:
        super().__init__()
        self.value_dim = value_dim
        self.weight = nn.Parameter(_uniform(features, value_dim, dim, fan_in=value_dim))

    def forward(self, x: Tensor) -> Tensor:
        """[rows, n · dim] of x [rows, n · value_dim]."""
        if self.value_dim == 1:
            return (x.unsqueeze(2) * self.weight.squeeze(1)).flatten(1)
        fields = x.reshape(x.shape[0], x.shape[1] // self.value_dim, self.value_dim).transpose(0, 1)
        return torch.bmm(fields, self.weight).transpose(0, 1).flatten(1)


def _uniform(*shape: int, fan_in: int) -> Tensor:
    bound = 1 / math.sqrt(fan_in)
    return torch.empty(*shape).uniform_(-bound, bound)
