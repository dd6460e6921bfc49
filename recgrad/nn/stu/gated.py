"""[u | o | u ∘ norm(o)] of an STU layer, from [s | v | q | k]: u = silu(s), o the attention of q, k and v.

In one function with a backward pass of its own where the kernels can: parts are written where the next layer
reads them, and gradients where the layer before does. Elsewhere torch's operations compute the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import launch_block
from recgrad.kernels.simd import LANES
from recgrad.nn.attention import Setting, jagged_attention, uses_kernels
from recgrad.nn.attention.backward_kernels import backward_item
from recgrad.nn.attention.forward_kernels import forward_item
from recgrad.nn.attention.jagged import Call, Plan, check_attention, plan_attention
from recgrad.nn.attention.setting import Biases
from recgrad.nn.jagged import Segments
from recgrad.nn.stu import gate_kernels as k

MAX_TASKS = 64


def gated_attention(
    mixed: Tensor,
    widths: Sequence[int],
    segments: Segments,
    setting: Setting,
    norm: nn.Module,
    *,
    targets: Tensor | None = None,
) -> Tensor:
    """[positions, 3 · width of v]: the three parts.

    Args:
        mixed: [positions, widths], s, v, q and k side by side.
        widths: of the four.
        segments: which row each position belongs to.
        setting: of the attention, without dropout.
        norm: of the attention's output.
        targets: int64 [rows], the candidates at each row's end.
    """
    if _fits(mixed, widths, setting, norm):
        assert isinstance(norm, nn.LayerNorm)
        _, v, q, key = torch.split(mixed, list(widths), dim=1)
        check_attention(q, key, v, segments, setting, targets, Biases())
        plan = plan_attention(segments, setting, targets)
        return _Gated.apply(plan, tuple(widths), norm.eps, mixed, norm.weight, norm.bias)  # type: ignore[no-any-return, no-untyped-call]
    s, v, q, key = torch.split(mixed, list(widths), dim=1)
    u = F.silu(s)
    o = jagged_attention(q, key, v, segments, setting, targets=targets)
    return torch.cat([u, o, u * norm(o)], dim=1)


def _fits(mixed: Tensor, widths: Sequence[int], setting: Setting, norm: nn.Module) -> bool:
    """Whether the kernels take this, here and now: columns in whole vectors."""
    return (
        isinstance(norm, nn.LayerNorm)
        and mixed.shape[0] > 0
        and uses_kernels(mixed, norm.weight)
        and mixed.stride(1) == 1
        and setting.dropout == 0
        and all(width // setting.heads % LANES == 0 for width in widths)
    )


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        plan: Plan,
        widths: tuple[int, ...],
        eps: float,
        mixed: Tensor,
        weight: Tensor,
        bias: Tensor,
    ) -> Tensor:
        s, v, q, key = torch.split(mixed, list(widths), dim=1)
        parts = mixed.new_empty(mixed.shape[0], 3 * widths[1])
        call = Call(plan, Biases(), q, key, v, None, None)
        call.set_out(parts[:, widths[1] : 2 * widths[1]], None)
        call.scratch()
        call.launch(forward_item)
        _GateCall(s, parts, weight, bias, eps).launch(k.gate_positions)
        ctx.plan, ctx.widths, ctx.eps = plan, widths, eps
        ctx.save_for_backward(mixed, weight, bias, parts)
        return parts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        mixed, weight, bias, parts = ctx.saved_tensors
        s, v, q, key = torch.split(mixed, list(ctx.widths), dim=1)
        of_mixed = torch.empty_like(mixed)
        of_s, of_v, of_q, of_k = torch.split(of_mixed, list(ctx.widths), dim=1)
        of_o = mixed.new_empty(v.shape)
        sums = _GateCall(s, parts, weight, bias, ctx.eps).launch_backward(grad.contiguous(), of_s, of_o)
        call = Call(ctx.plan, Biases(), q, key, v, None, None)
        call.set_gradients(of_o, (of_q, of_k, of_v))
        call.scratch(backward=True)
        call.launch(backward_item)
        return None, None, None, of_mixed, sums[0], sums[1]


class _GateCall:
    """What the kernels around the attention are called with; holds on to all that it has addresses of."""

    def __init__(self, s: Tensor, parts: Tensor, weight: Tensor, bias: Tensor, eps: float) -> None:
        self.held: list[Any] = []
        self.slots = np.zeros(k.ARGUMENTS, np.int64)
        positions = s.shape[0]
        step = -(-positions // MAX_TASKS)
        self.tasks = -(-positions // step)
        self.like, self.width = s, s.shape[1]
        for slot, number in (
            (k.TASKS, self.tasks),
            (k.POSITIONS, positions),
            (k.STEP, step),
            (k.WIDTH, self.width),
        ):
            self.slots[slot] = number
        self._rows(k.S, s)
        self._rows(k.PARTS, parts)
        self._hold(k.WEIGHT, weight.contiguous())
        self._hold(k.BIAS, bias.contiguous())
        self._hold(k.EPS, s.new_full((1,), eps))

    def launch(self, kernel: Any) -> None:
        """Run a kernel over all positions."""
        launch_block(compiled(kernel), self.slots, self.tasks)

    def launch_backward(self, grad: Tensor, of_s: Tensor, of_o: Tensor) -> Tensor:
        """Fill in the gradients of s and o; returns those of the norm's weight and bias, [2, width]."""
        self._rows(k.GRAD, grad)
        self._rows(k.GRAD_S, of_s)
        self._rows(k.GRAD_O, of_o)
        sums = self.like.new_zeros(self.tasks, 2, self.width)
        self._hold(k.SUMS, sums)
        self.launch(k.ungate_positions)
        return sums.sum(0)

    def _rows(self, slot: int, value: Tensor) -> None:
        self._hold(slot, value)
        self.slots[slot + 1] = 4 * value.stride(0)

    def _hold(self, slot: int, value: Tensor) -> None:
        self.held.append(value)
        self.slots[slot] = value.data_ptr()
