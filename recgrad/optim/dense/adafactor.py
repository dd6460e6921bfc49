"""Adafactor."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from torch import Tensor

from recgrad.limits import Positive, Range, Rate
from recgrad.optim import foreach
from recgrad.optim.dense.foreach import ForeachOptimizer
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Params


@DENSE_OPTIMIZERS.register("adafactor_optimizer")
class Adafactor(ForeachOptimizer):
    """Adafactor: Adam without m, whose v for a matrix is kept as the means of its rows and columns.

    V = R·C/mean(R) with R and C averages of the rows' and columns' mean g², U = g/√max(V, eps1²),
    w −= ηλw, w −= α·U/max(1, RMS(U)/d), α = min(η, 1/√t)·max(eps2, RMS(w)). The averages have
    1 − t^beta2_decay in the place of β2; vectors keep V whole. eps1 is a
    floor for √V, as torch has it. Written here: torch.optim.Adafactor has the same rules,
    but fails for empty tensors, and takes the root of every element of V where those of R and
    C do.

    Paper: Shazeer and Stern 2018, Adafactor: adaptive learning rates with sublinear memory cost.

    Args:
        eps1: the least √V; the machine epsilon of the type when left out.
        eps2: the least RMS(w) that the rate is multiplied by.
        d: the largest RMS of an update before the rate.
    """

    def __init__(
        self,
        params: Params,
        *,
        lr: Rate = 0.01,
        beta2_decay: Annotated[float, Range("(-∞, 0)")] = -0.8,
        eps1: Positive | None = None,
        eps2: Positive = 1e-3,
        d: Positive = 1.0,
        weight_decay: Rate = 0.0,
        foreach: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "beta2_decay": beta2_decay,
            "eps1": eps1,
            "eps2": eps2,
            "d": d,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults, foreach=foreach)

    def init_state(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """No updates yet; R = C = 0 for a matrix (the last two dimensions), V = 0 for a vector."""
        if parameter.ndim < 2:
            return {"step": 0, "variance": torch.zeros_like(parameter)}
        *batch, rows, cols = parameter.shape
        return {
            "step": 0,
            "row_var": parameter.new_zeros(*batch, rows, 1),
            "col_var": parameter.new_zeros(*batch, 1, cols),
        }

    def update(
        self, params: list[Tensor], grads: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]
    ) -> None:
        """One update."""
        sizes = [max(p.numel(), 1) ** 0.5 for p in params]
        norms = torch.stack(list(foreach.norm(params))).tolist()
        if group["weight_decay"]:
            foreach.mul_(params, 1 - group["lr"] * group["weight_decay"])
        for p, grad, state, norm, size in zip(params, grads, states, norms, sizes):
            if not p.numel():
                continue
            state["step"] += 1
            step = state["step"]
            rate = min(group["lr"], 1 / math.sqrt(step)) * max(group["eps2"], norm / size)
            eps1 = torch.finfo(p.dtype).eps if group["eps1"] is None else group["eps1"]
            u = normalised(grad, state, step ** group["beta2_decay"], eps1)
            rms = float(torch.linalg.vector_norm(u)) / size
            p.add_(u, alpha=-rate / max(1.0, rms / group["d"]))


def normalised(grad: Tensor, state: dict[str, Any], weight: float, eps1: float) -> Tensor:
    """g/√max(V, eps1²), after g² is averaged into the state with the given weight."""
    squares = grad * grad
    floor = eps1 * eps1
    if "variance" in state:
        variance: Tensor = state["variance"]
        variance.lerp_(squares, weight)
        return variance.clamp(min=floor).rsqrt_().mul_(grad)
    rows: Tensor = state["row_var"]
    cols: Tensor = state["col_var"]
    rows.lerp_(squares.mean(-1, keepdim=True), weight)
    cols.lerp_(squares.mean(-2, keepdim=True), weight)
    shares = rows / rows.mean(-2, keepdim=True).clamp_(min=eps1)
    if float(shares.min()) * float(cols.min()) < floor:
        # The floor cuts in somewhere: only the whole of V tells where.
        return (shares * cols).clamp_(min=floor).rsqrt_().mul_(grad)
    torch.mul(grad, shares.rsqrt_(), out=squares)
    return squares.mul_(cols.rsqrt())
