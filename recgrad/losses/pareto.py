"""Weights of several tasks that no other weights improve for all (Lin et al., 2019; Désidéri, 2012)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from recgrad.ranks import sum_, world_size

Floats = npt.NDArray[np.float64]


def pareto_weights(
    losses: Sequence[Tensor],
    shared: Iterable[Tensor],
    minimum: Sequence[float] | None = None,
    *,
    num_rows: int = 1,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Weights w of task losses that minimise ‖Σ wᵢ·∇lossᵢ‖², Σw = 1, wᵢ ≥ minimumᵢ.

    Gradients are taken with respect to `shared`, the parameters that more than one task
    uses, and averaged over the rows of all ranks, so that the weights are the same on every rank. The
    graph is kept for the backward pass of Σ wᵢ·lossᵢ; the weights carry no gradient.

    Args:
        losses: one scalar a task.
        shared: tensors that require gradients; one that a loss does not reach counts as 0.
        minimum: least weight of each task, 0 by default; they sum to at most 1.
        num_rows: how many rows the losses are means of.
        group: the ranks that train together.

    Returns:
        [tasks], of the losses' type and device.
    """
    bounds = check_minimum(minimum or [0.0] * len(losses), len(losses))
    tensors = [tensor for tensor in shared if tensor.requires_grad]
    if not tensors:
        raise ValueError("shared must hold a tensor that requires a gradient, got none")
    rows = [_gradient(loss, tensors) for loss in losses]
    gradients = torch.stack(rows)
    if world_size(group) > 1:
        total = sum_(torch.tensor(float(num_rows), device=gradients.device), group)
        gradients = sum_(gradients * num_rows, group) / total.clamp(min=1)
    gradients = gradients.double()
    weights = min_norm_weights((gradients @ gradients.T).cpu().numpy(), bounds)
    return torch.from_numpy(weights).to(losses[0].device, losses[0].dtype)


def check_minimum(minimum: Sequence[float], tasks: int) -> Floats:
    """The least weights as an array; raises when no weights can satisfy them."""
    bounds = np.asarray(minimum, dtype=np.float64)
    if len(bounds) != tasks:
        raise ValueError(f"minimum must have one weight for each of {tasks} tasks, got {len(bounds)}")
    if not (bounds >= 0).all() or bounds.sum() > 1 + 1e-6:
        raise ValueError(f"minimum weights must be at least 0 and sum to at most 1, got {bounds.tolist()}")
    return bounds


def min_norm_weights(gram: Floats, minimum: Floats) -> Floats:
    """argmin wᵀ·gram·w over Σw = 1, w ≥ minimum, for a symmetric positive semidefinite gram.

    With w = minimum + s·x, s = 1 − Σ minimum, this is the point of least norm in a simplex.
    When the unconstrained solution is inside it, it is the answer; else bounds are added
    and dropped one at a time (Wolfe, 1976), which is exact. Where many weights are equally
    good (gradients that are zero, equal or dependent), the one nearest to equal shares is
    taken.
    """
    tasks = len(minimum)
    free = max(0.0, 1 - float(minimum.sum()))
    equal = np.full(tasks, 1 / tasks)
    size = float(np.trace(gram)) / tasks
    if free == 0 or not np.isfinite(size) or size <= 0:
        # A gradient that is inf or nan says nothing about weights: the step will be skipped.
        return minimum + free * equal
    gram = gram / size
    tilt = gram @ minimum
    points = free * free * gram + free * (tilt[:, None] + tilt) + minimum @ tilt
    return minimum + free * _simplex_min_norm(points)


def _simplex_min_norm(points: Floats) -> Floats:
    """argmin xᵀ·points·x over the simplex, by an active set that starts with every bound free."""
    tasks = len(points)
    x = np.full(tasks, 1 / tasks)
    used = np.ones(tasks, dtype=bool)
    for _ in range(100 * tasks):
        target = np.zeros(tasks)
        target[used] = _affine_min_norm(points[np.ix_(used, used)])
        if (target >= 0).all():
            x = target
            pull = points @ x
            norm = float(x @ pull)
            behind = np.where(used, np.inf, pull)
            worst = int(behind.argmin())
            if behind[worst] >= norm - 1e-13 * max(1.0, norm):
                break
            used[worst] = True
            continue
        falling = target < x
        step = np.min(np.where(falling & used, x / np.where(falling, x - target, 1), np.inf))
        x = np.maximum(x + step * (target - x), 0)
        x[used & falling & (x <= 1e-15)] = 0
        used &= x > 0
        x /= x.sum()
    return x


def _affine_min_norm(points: Floats) -> Floats:
    """argmin xᵀ·points·x over Σx = 1, without bounds; of many, the shortest x."""
    n = len(points)
    system = np.ones((n + 1, n + 1))
    system[:n, :n], system[n, n] = points, 0
    right = np.zeros(n + 1)
    right[n] = 1
    solution: Floats = np.linalg.lstsq(system, right, rcond=1e-10)[0].astype(np.float64)
    return solution[:n]


def _gradient(loss: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """The gradient with respect to all tensors, end to end; zero when none is reached."""
    if not loss.requires_grad:
        return torch.cat([torch.zeros_like(tensor).reshape(-1) for tensor in tensors])
    parts = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([part.reshape(-1) for part in parts])
