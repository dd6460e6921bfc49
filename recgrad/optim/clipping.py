"""Clipping gradients: one norm over dense and sparse gradients, or value by value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import torch
from torch import Tensor

from recgrad.limits import Positive, Range, keep_limits
from recgrad.optim import foreach

#: Combines a tensor over all processes: their sum, or their maximum.
Reduce = Callable[[Tensor, Literal["sum", "max"]], Tensor]

# torch.nn.utils.clip_grad_norm_ adds this to the norm; the same here, for the same results.
_EPS = 1e-6


class ClippedSparse(Protocol):
    """What clipping needs of the sparse half."""

    def grad_norm(self, norm_type: float = 2.0) -> Tensor:
        """The norm of the gradients that this process holds."""

    def clip_(self, factor: float) -> None:
        """Multiplies the gradients by a factor."""

    def clamp_(self, limit: float) -> None:
        """Clamps each element of the gradients to ±limit."""


@keep_limits
@dataclass(frozen=True)
class GradientClipping:
    """How gradients are clipped before an update.

    Args:
        clipping_type: `norm` scales them down when their norm exceeds max_gradient, `value`
            clamps each element to ±max_gradient, `none` leaves them.
        max_gradient: the limit.
        norm_type: which p-norm; inf for the largest element.
        enable_global_grad_clip: take the sparse gradients in, and those of all processes.
            Dense gradients are the same on every process (they are averaged in backward), so
            they count once; of sparse ones every process holds a share.
    """

    clipping_type: Literal["none", "norm", "value"] = "none"
    max_gradient: Positive = 1.0
    norm_type: Annotated[float, Range("(0, ∞]")] = 2.0
    enable_global_grad_clip: bool = False

    def apply(
        self, dense: list[Tensor], sparse: Sequence[ClippedSparse], reduce: Reduce | None = None
    ) -> float | None:
        """Clips in place; returns the norm before clipping, when it was taken."""
        sparse = sparse if self.enable_global_grad_clip else ()
        if self.clipping_type == "none":
            return None
        if self.clipping_type == "value":
            if dense:
                foreach.clamp_min_(dense, -self.max_gradient)
                foreach.clamp_max_(dense, self.max_gradient)
            for half in sparse:
                half.clamp_(self.max_gradient)
            return None
        norm = total_norm(dense, sparse, self.norm_type, reduce if self.enable_global_grad_clip else None)
        factor = self.max_gradient / (norm + _EPS)
        if factor < 1 and math.isfinite(norm):
            if dense:
                foreach.mul_(dense, factor)
            for half in sparse:
                half.clip_(factor)
        return norm


def total_norm(
    dense: Sequence[Tensor],
    sparse: Sequence[ClippedSparse],
    norm_type: float,
    reduce: Reduce | None = None,
) -> float:
    """The p-norm of dense gradients (the same on every process) and sparse ones (shared out)."""
    norm = float(torch.nn.utils.get_total_norm(dense, norm_type)) if dense else 0.0
    if not sparse:
        return norm
    shares = torch.stack([half.grad_norm(norm_type).detach().double() for half in sparse])
    if math.isinf(norm_type):
        share = shares.max()
        return max(norm, float(share if reduce is None else reduce(share, "max")))
    powers = shares.pow(norm_type).sum()
    powers = powers if reduce is None else reduce(powers, "sum")
    return float((powers + norm**norm_type) ** (1 / norm_type))


def reduce_over_processes(value: Tensor, op: Literal["sum", "max"]) -> Tensor:
    """A `Reduce` over the processes of torch.distributed's default group."""
    from torch import distributed

    # By the host where the group has a backend for it; one of nccl alone takes tensors of GPUs only.
    where = "cpu" if "cpu:" in distributed.get_backend_config() else "cuda"
    moved = value.detach().to(where, copy=True)
    distributed.all_reduce(moved, distributed.ReduceOp.SUM if op == "sum" else distributed.ReduceOp.MAX)
    return moved.to(value.device)
