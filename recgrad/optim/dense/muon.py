"""Muon."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from recgrad.limits import Range, Rate, Share
from recgrad.optim import foreach
from recgrad.optim.dense.adamw import adamw
from recgrad.optim.dense.foreach import ForeachOptimizer
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Factory, Params

# Jordan et al.: the slope at 0 is steep, and five steps bring singular values to 0.7 … 1.2.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_EPS = 1e-7


@DENSE_OPTIMIZERS.register("muon_optimizer")
class Muon(ForeachOptimizer):
    """Muon: momentum, made nearly orthogonal by Newton–Schulz steps, on hidden matrices.

    b = μb + (1−μ)g; u = b, or μb + (1−μ)g with nesterov; w −= ηλw; w −= η·s·orthogonal(u).
    From a config, what is not a hidden matrix (first, last, vectors, embeddings) goes to AdamW
    with the fallback_* settings. Written here: torch.optim.Muon runs
    Newton–Schulz in bfloat16 wherever it is, which CPUs are many times slower at than float32;
    this one takes bfloat16 on GPUs alone.

    Paper: Jordan et al. 2024, Muon: an optimizer for hidden layers; MATCH_RMS: Liu et al. 2025.

    Args:
        ns_steps: Newton–Schulz steps.
        scale: s, MATCH_RMS 0.2·√max(rows, cols), which lets rates tuned for AdamW be kept
            (Liu et al. 2025), or SPECTRAL √max(1, rows/cols).
    """

    fallback: ClassVar[Factory] = staticmethod(adamw)

    def __init__(
        self,
        params: Params,
        *,
        lr: Rate = 0.02,
        momentum: Share = 0.95,
        nesterov: bool = True,
        ns_steps: Annotated[int, Range("[1, 100]")] = 5,
        weight_decay: Rate = 0.0,
        scale: Literal["MATCH_RMS", "SPECTRAL"] = "MATCH_RMS",
        foreach: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": ns_steps,
            "weight_decay": weight_decay,
            "scale": scale,
        }
        super().__init__(params, defaults, foreach=foreach)
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2:
                    raise ValueError(f"Muon takes matrices only, got a tensor of shape {tuple(p.shape)}")

    def init_state(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """b = 0."""
        return {"momentum_buffer": torch.zeros_like(parameter)}

    def update(
        self, params: list[Tensor], grads: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]
    ) -> None:
        """One update."""
        buffers = [state["momentum_buffer"] for state in states]
        foreach.lerp_(buffers, grads, 1 - group["momentum"])
        directions = foreach.lerp(grads, buffers, group["momentum"]) if group["nesterov"] else buffers
        if group["weight_decay"]:
            foreach.mul_(params, 1 - group["lr"] * group["weight_decay"])
        for p, direction in zip(params, directions):
            update = orthogonal(direction, group["ns_steps"])
            p.add_(update, alpha=-group["lr"] * update_scale(p, group["scale"]))


def update_scale(matrix: Tensor, scale: str) -> float:
    """What an orthogonal update of the matrix is multiplied by."""
    rows, cols = matrix.shape
    if scale == "MATCH_RMS":
        return 0.2 * math.sqrt(max(rows, cols))
    return math.sqrt(max(1.0, rows / max(cols, 1)))


def orthogonal(matrix: Tensor, steps: int, dtype: torch.dtype | None = None) -> Tensor:
    """UVᵀ, nearly, of a matrix USVᵀ: singular values near 1, by Newton–Schulz steps.

    X = M/‖M‖; then X = aX + bAX + cA²X with A = XXᵀ. The shorter side comes first, so that
    A is the smaller of the two products.

    Args:
        dtype: what to compute in; bfloat16 on a GPU and the matrix's own elsewhere when left out.
    """
    a, b, c = NEWTON_SCHULZ
    x = matrix.to(dtype or (torch.bfloat16 if matrix.is_cuda else matrix.dtype))
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    x = x / torch.linalg.vector_norm(x).clamp(min=_EPS)
    for _ in range(steps):
        gram = x @ x.T
        poly = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, poly, x, beta=a)
    return (x.T if tall else x).to(matrix.dtype)
