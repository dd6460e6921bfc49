"""Behaviour-to-interest capsules: a history becomes several vectors by dynamic routing (Li et al. 2019)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from recgrad.limits import Count, Positive, Rate
from recgrad.nn.jagged import Segments, pad, truncate

_SMALLEST = 1e-7


class B2ICapsule(nn.Module):
    """Up to max_k interests of each row, [rows, max_k, high_dim], from its history.

    u_s = x_s·S. Routing logits R begin at random; in each round W = softmax over interests of scale·R, and
    z_k = Σ_s W_sk·u_s; R = W + z_k·u_s/‖u_s‖ leads to the next, without gradients. The last z is squashed:
    (n²/(1+n²))^squash_pow · z/n with n = ‖z‖. A history of length l has ⌈log2 l⌉ interests, at least 1.

    The random beginning is drawn once, from the model's seed, one number for each place in the history and
    each interest: it tells interests apart, and a row has the same ones whenever it is scored.

    Paper: Li et al. 2019, arXiv:1904.08030

    Args:
        low_dim: width of a position.
        max_k: the most interests of a row.
        max_seq_len: positions that count, the first ones.
        high_dim: width of an interest.
        num_iters: rounds of routing.
        routing_logits_scale: of the logits before the softmax.
        routing_logits_stddev: of their random beginning.
        squash_pow: how much short interests shrink.
        const_caps_num: every row has max_k interests.
        routing_init_method: "normal" or "zeros".
    """

    noise: Tensor

    def __init__(
        self,
        low_dim: int,
        *,
        max_k: Count = 5,
        max_seq_len: Count,
        high_dim: Count,
        num_iters: Count = 3,
        routing_logits_scale: Positive = 20.0,
        routing_logits_stddev: Rate = 1.0,
        squash_pow: Rate = 1.0,
        const_caps_num: bool = False,
        routing_init_method: Literal["normal", "zeros"] = "normal",
    ) -> None:
        super().__init__()
        self.max_k, self.max_seq_len, self.num_iters = max_k, max_seq_len, num_iters
        self.scale, self.squash_pow, self.const_caps_num = routing_logits_scale, squash_pow, const_caps_num
        self.bilinear = nn.Parameter(torch.randn(low_dim, high_dim))
        spread = routing_logits_stddev if routing_init_method == "normal" else 0.0
        self.register_buffer("noise", torch.empty(max_seq_len, max_k).normal_(std=spread))

    def forward(self, sequence: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Interests [rows, max_k, high_dim], zeros where a row has fewer, and which there are [rows, max_k].

        Args:
            sequence: [positions, low_dim], those of the first row first.
            lengths: [rows], the positions of each row.
        """
        segments = Segments.from_lengths(lengths, sequence.shape[0])
        sequence, segments = truncate(sequence, segments, self.max_seq_len)
        valid = self.interests(segments.lengths)
        u = pad(sequence @ self.bilinear, segments, self.max_seq_len)
        places = torch.arange(self.max_seq_len, device=u.device)
        there = (places < segments.lengths[:, None])[..., None]
        fixed = u.detach()
        directions = fixed / fixed.norm(dim=2, keepdim=True).clamp(min=_SMALLEST)
        logits = self.noise.expand(u.shape[0], -1, -1)
        for _ in range(self.num_iters - 1):
            weights = self._weights(logits, valid, there)
            interests = weights.transpose(1, 2) @ fixed
            logits = weights + directions @ interests.transpose(1, 2)
        weights = self._weights(logits, valid, there)
        interests = weights.transpose(1, 2) @ u
        return squash(interests, self.squash_pow) * valid[..., None], valid

    def interests(self, lengths: Tensor) -> Tensor:
        """Which interests rows of these lengths have, [rows, max_k]."""
        number = torch.arange(self.max_k, device=lengths.device)
        if self.const_caps_num:
            return (number < self.max_k).expand(lengths.shape[0], -1)
        return number < torch.log2(lengths.clamp(min=1).double()).clamp(1, self.max_k)[:, None]

    def _weights(self, logits: Tensor, valid: Tensor, there: Tensor) -> Tensor:
        masked = (self.scale * logits).masked_fill(~valid[:, None, :], -torch.inf)
        return masked.softmax(dim=2) * there


def squash(x: Tensor, power: float) -> Tensor:
    """(n²/(1+n²))^power · x/n with n = ‖x‖, over the last dimension; 0 for 0."""
    square = x.square().sum(-1, keepdim=True).clamp(min=_SMALLEST**2)
    return (square / (1 + square)) ** power * x / square.sqrt()
