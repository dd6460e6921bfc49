"""The last layer of a model: a linear layer from hidden units to logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from recgrad.nn.relu_layers import runs_kernels

MIN_INPUTS = 1 << 16  # numbers: below, torch's operations are as fast


class OutputLayer(nn.Linear):
    """`nn.Linear`, by kernels of our own where it has one output and many rows of float32 on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """[rows, out_features]."""
        one = self.out_features == 1 and input.dim() == 2 and input.numel() >= MIN_INPUTS
        if one and runs_kernels(input, *self.parameters()):
            return _Dots.apply(input, self.weight, self.bias)  # type: ignore[no-any-return, no-untyped-call]
        return super().forward(input)


class _Dots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # Imported here, since it brings numba along.
        from recgrad.nn.output_kernels import dots

        x = x if x.stride(1) == 1 else x.contiguous()
        ctx.save_for_backward(x, weight)
        return dots(x, weight.contiguous(), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        from recgrad.nn.output_kernels import dots_backward

        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        gradient = gradient.contiguous()
        below, sums = dots_backward(x, weight.contiguous(), gradient, of_x=of_x)
        return below, sums if of_weight else None, gradient.sum(0) if of_bias else None
