"""Weighted sums of experts: Σ_e p_e · h_e of each row, for one or several sets of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recgrad.nn.relu_layers import runs_kernels

MIN_NUMBERS = 1 << 15  # in all experts: below, torch's operations are as fast


def mix_experts(weights: Tensor, experts: Sequence[Tensor]) -> Tensor:
    """[rows, sets, width]: Σ_e weights[:, s, e] · h_e, over the experts of all parts in their order.

    Args:
        weights: [rows, sets, experts of all parts].
        experts: [rows, experts, width] of each part; they are not copied together.
    """
    numbers = sum(part.numel() for part in experts)
    if numbers >= MIN_NUMBERS and runs_kernels(weights, *experts):
        return _Mix.apply(weights, *experts)  # type: ignore[no-any-return, no-untyped-call]
    return torch.bmm(weights, experts[0] if len(experts) == 1 else torch.cat(list(experts), dim=1))


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, *experts: Tensor) -> Tensor:
        # Imported here, since it brings numba along.
        from recgrad.nn.mix_kernels import mix

        weights, experts = weights.contiguous(), tuple(_side_by_side(part) for part in experts)
        rows, sets, _ = weights.shape
        out = weights.new_empty(rows, sets, experts[0].shape[2])
        for i, (p, h) in enumerate(_parts(weights, experts)):
            mix(p, h, out, adds=i > 0)
        ctx.save_for_backward(weights, *experts)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        from recgrad.nn.mix_kernels import mix_backward

        weights, *experts = ctx.saved_tensors
        gradient, of_weights = gradient.contiguous(), torch.empty_like(weights)
        of_experts = [h.new_empty(h.shape) for h in experts]
        parts = zip(_parts(weights, experts), of_experts, _parts(of_weights, experts), strict=True)
        for (p, h), of_h, (of_p, _) in parts:
            mix_backward(p, h, gradient, of_h, of_p)
        return of_weights, *of_experts


def _parts(weights: Tensor, experts: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Each part's weights, as a view, and experts."""
    split = torch.split(weights, [part.shape[1] for part in experts], dim=2)
    return list(zip(split, experts, strict=True))


def _side_by_side(part: Tensor) -> Tensor:
    """Experts of a row one after the other, as the kernels read them; rows may lie apart."""
    return part if part.stride()[1:] == (part.shape[2], 1) else part.contiguous()
