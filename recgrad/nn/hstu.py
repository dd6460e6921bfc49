"""Layers of pointwise attention over jagged rows, as HSTU's research model has them.

Zhai et al. 2024, https://arxiv.org/abs/2402.17152
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.nn.attention import Biases, Mask, Setting, TimeBuckets, jagged_attention
from recgrad.nn.jagged import Segments

_EPS = 1e-6
_STD = 0.02


class HSTULayer(nn.Module):
    """x' = x + Wₒ·drop(u ∘ LN(a)) + bₒ with a = Σ_j silu(q·k_j + bias) / N · v_j, [u|v|q|k] = silu(LN(x)·W).

    The norms have no weights of their own. The bias is that of relative positions and of buckets of the
    time between what is asked for and each position.

    Args:
        dim: width of positions.
        heads: of the attention.
        attention_dim: width of a head's queries and keys.
        hidden_dim: width of a head's values.
        max_length: N; also the longest row that the bias is for.
        dropout: share of values dropped.
        time_bias: whether times count.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int,
        attention_dim: int,
        hidden_dim: int,
        max_length: int,
        dropout: float = 0.0,
        time_bias: bool = True,
    ) -> None:
        super().__init__()
        self.widths = [heads * hidden_dim] * 2 + [heads * attention_dim] * 2
        self.weight = nn.Parameter(torch.empty(dim, sum(self.widths)).normal_(std=_STD))
        self.output = nn.Linear(heads * hidden_dim, dim)
        nn.init.xavier_uniform_(self.output.weight)
        self.setting = Setting("silu", heads, 1.0, float(max_length), Mask())
        self.positions = nn.Parameter(torch.empty(2 * max_length - 1).normal_(std=_STD))
        self.buckets = TimeBuckets() if time_bias else None
        if self.buckets is not None:
            self.times = nn.Parameter(torch.empty(self.buckets.count + 1).normal_(std=_STD))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        segments: Segments,
        times: Tensor | None = None,
        query_times: Tensor | None = None,
    ) -> Tensor:
        """[positions, dim] of the same.

        Args:
            x: [positions, dim].
            segments: which row each position belongs to.
            times: float64 [positions], when each happened; needed with `time_bias`.
            query_times: float64 [positions], when what follows it is asked for.
        """
        normed = F.layer_norm(x, x.shape[1:], eps=_EPS)
        u, v, q, k = torch.split(F.silu(normed @ self.weight), self.widths, dim=1)
        biases = Biases(self.positions)
        if self.buckets is not None:
            biases = Biases(self.positions, self.times, times, query_times, self.buckets)
        attended = jagged_attention(q, k, v, segments, self.setting, biases=biases)
        gated = u * F.layer_norm(attended, attended.shape[1:], eps=_EPS)
        out: Tensor = x + self.output(self.dropout(gated))
        return out
