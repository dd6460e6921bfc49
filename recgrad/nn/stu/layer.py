"""The sequential transduction unit, one layer of HSTU as the schema has it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.limits import Count, Fraction, Size
from recgrad.nn.attention import Mask, Setting
from recgrad.nn.jagged import Segments
from recgrad.nn.stu.gated import gated_attention

_EPS = 1e-6


class HeadNorm(nn.Module):
    """Layer norm of each head by itself, with one weight and one bias a head."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.shape = (heads, width)
        self.weight, self.bias = nn.Parameter(torch.ones(heads)), nn.Parameter(torch.zeros(heads))

    def forward(self, x: Tensor) -> Tensor:
        """[positions, heads · width] of the same."""
        normed = F.layer_norm(x.view(-1, *self.shape), self.shape[1:], eps=_EPS)
        return (normed * self.weight.unsqueeze(1) + self.bias.unsqueeze(1)).view(x.shape)


class STULayer(nn.Module):
    """x' = x + drop([u | o | u ∘ norm(o)])·Wₒ, o_i = Σ_j M_ij · silu(α·q_i·k_j) / N · v_j.

    [u | v | q | k] = LN(x)·W + b, u through SiLU.

    Args:
        embedding_dim: width of tokens.
        num_heads: heads of the attention.
        hidden_dim: width of a head's values.
        attention_dim: width of a head's queries and keys.
        divisor: N.
        mask: M, see `Mask`.
        output_dropout_ratio: share of values dropped before Wₒ.
        attn_alpha: α; 1/√attention_dim if 0.
        use_group_norm: norm each head by itself.
    """

    def __init__(
        self,
        *,
        embedding_dim: Count,
        num_heads: Count,
        hidden_dim: Count,
        attention_dim: Count,
        divisor: float,
        mask: Mask | None = None,
        output_dropout_ratio: Fraction = 0.3,
        attn_alpha: float = 0.0,
        use_group_norm: bool = False,
    ) -> None:
        super().__init__()
        values, keys = num_heads * hidden_dim, num_heads * attention_dim
        self.widths = [values, values, keys, keys]
        self.input_norm = nn.LayerNorm(embedding_dim, eps=_EPS)
        self.uvqk = nn.Linear(embedding_dim, sum(self.widths))
        self.output = nn.Linear(3 * values, embedding_dim, bias=False)
        nn.init.xavier_uniform_(self.uvqk.weight)
        nn.init.zeros_(self.uvqk.bias)
        nn.init.xavier_uniform_(self.output.weight)
        self.output_norm: nn.Module = (
            HeadNorm(num_heads, hidden_dim) if use_group_norm else nn.LayerNorm(values, eps=_EPS)
        )
        alpha = attn_alpha or attention_dim**-0.5
        self.setting = Setting("silu", num_heads, alpha, float(divisor), mask or Mask())
        self.dropout = nn.Dropout(output_dropout_ratio)

    def forward(self, x: Tensor, segments: Segments, targets: Tensor | None = None) -> Tensor:
        """[tokens, dim] of the same.

        Args:
            x: [tokens, dim], those of a row as [contextual | history | candidates].
            segments: which row each token belongs to.
            targets: int64 [rows], the number of candidates at each row's end.
        """
        mixed = self.uvqk(self.input_norm(x))
        parts = gated_attention(mixed, self.widths, segments, self.setting, self.output_norm, targets=targets)
        out: Tensor = x + self.output(self.dropout(parts))
        return out


def stu_mask(*, contextual: Size, max_attn_len: Size = 0, sla_k1: Size = 0, sla_k2: Size = 0) -> Mask:
    """The mask of a layer: semi-local attention, where it is set, replaces the window."""
    if sla_k1 or sla_k2:
        return Mask("SEMI_LOCAL", contextual, near=sla_k1, first=sla_k2)
    return Mask(contextual=contextual, window=max_attn_len)
