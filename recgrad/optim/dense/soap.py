"""SOAP."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from recgrad.limits import Count, Positive, Rate, Share, Size
from recgrad.optim import foreach
from recgrad.optim.dense.adamw import adamw
from recgrad.optim.dense.foreach import ForeachOptimizer
from recgrad.optim.dense.moments import no_moments
from recgrad.optim.dense.optimizer import DENSE_OPTIMIZERS, Factory, Params


@DENSE_OPTIMIZERS.register("soap_optimizer")
class Soap(ForeachOptimizer):
    """SOAP: Adam in the slowly turning eigenbasis of Shampoo's statistics, on hidden matrices.

    L and R are averages of GGᵀ and GᵀG, Q_L and Q_R their eigenvectors: of the first gradient's
    by eigendecomposition, then every precondition_frequency updates by one step of power
    iteration and QR. Adam runs on Q_LᵀGQ_R, and its step is turned back; when the basis
    changes m is turned with it, and v follows the order of the eigenvalues. The first update
    only fills the statistics; bias correction counts from the second. A side longer than
    max_precondition_dim stays unturned, and so do vectors: there it is AdamW. From a config,
    what is not a hidden matrix goes to AdamW with the fallback_* settings.
    Written here: torch has none; pytorch_optimizer's is not Adam in a basis that stays (its ε
    is not corrected for bias) and turns m again at every update, two more matrix products.

    Paper: Vyas et al. 2024, SOAP: improving and stabilizing Shampoo using Adam.

    Args:
        shampoo_beta: the average of L and R; beta2 when left out.
    """

    fallback: ClassVar[Factory] = staticmethod(adamw)

    def __init__(
        self,
        params: Params,
        *,
        lr: Rate = 0.003,
        beta1: Share = 0.95,
        beta2: Share = 0.95,
        shampoo_beta: Share | None = None,
        eps: Positive = 1e-8,
        weight_decay: Rate = 0.0,
        precondition_frequency: Count = 10,
        max_precondition_dim: Size = 10000,
        foreach: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": (beta1, beta2),
            "shampoo_beta": shampoo_beta,
            "eps": eps,
            "weight_decay": weight_decay,
            "precondition_frequency": precondition_frequency,
            "max_precondition_dim": max_precondition_dim,
        }
        super().__init__(params, defaults, foreach=foreach)
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim > 2:
                    raise ValueError(
                        f"SOAP takes matrices and vectors, got a tensor of shape {tuple(p.shape)}"
                    )

    def init_state(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """m = v = 0 in the basis, L = R = 0 for the sides that are turned."""
        state = no_moments(parameter)
        if parameter.ndim == 2:
            for side, size in zip("LR", parameter.shape):
                if 0 < size <= group["max_precondition_dim"]:
                    state[side] = parameter.new_zeros(size, size)
        return state

    def update(
        self, params: list[Tensor], grads: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]
    ) -> None:
        """One update; the first of a parameter only fills its statistics."""
        begun = [i for i, state in enumerate(states) if state["step"] > 0]
        if begun:
            self._adam(
                [params[i] for i in begun], [grads[i] for i in begun], [states[i] for i in begun], group
            )
        beta = group["betas"][1] if group["shampoo_beta"] is None else group["shampoo_beta"]
        for grad, state in zip(grads, states):
            gather(grad, state, beta)
            if state["step"] == 0:
                for side in "LR":
                    if side in state:
                        state[f"Q{side}"] = eigenvectors(state[side])
            elif state["step"] % group["precondition_frequency"] == 0:
                turn_basis(state)
            state["step"] += 1

    @staticmethod
    def _adam(
        params: list[Tensor], grads: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]
    ) -> None:
        beta1, beta2 = group["betas"]
        m = [state["exp_avg"] for state in states]
        v = [state["exp_avg_sq"] for state in states]
        turned = [turn(grad, state) for grad, state in zip(grads, states)]
        foreach.lerp_(m, turned, 1 - beta1)
        foreach.mul_(v, beta2)
        foreach.addcmul_(v, turned, turned, value=1 - beta2)
        # The count is one behind: the first gradient made no update.
        roots = [(1 - beta2 ** state["step"]) ** 0.5 for state in states]
        steps = foreach.sqrt(v)
        foreach.add_(steps, [group["eps"] * root for root in roots])
        foreach.reciprocal_(steps)
        foreach.mul_(steps, m)
        factors = [-group["lr"] * root / (1 - beta1 ** s["step"]) for root, s in zip(roots, states)]
        if group["weight_decay"]:
            foreach.mul_(params, 1 - group["lr"] * group["weight_decay"])
        for p, step, state, factor in zip(params, steps, states, factors):
            p.add_(turn_back(step, state), alpha=factor)


def turn(matrix: Tensor, state: dict[str, Any]) -> Tensor:
    """Q_LᵀMQ_R: a matrix in the eigenbasis."""
    if "QL" in state:
        matrix = state["QL"].T @ matrix
    return matrix @ state["QR"] if "QR" in state else matrix


def turn_back(matrix: Tensor, state: dict[str, Any]) -> Tensor:
    """Q_LMQ_Rᵀ: a matrix of the eigenbasis in the parameter's own."""
    if "QL" in state:
        matrix = state["QL"] @ matrix
    return matrix @ state["QR"].T if "QR" in state else matrix


def gather(grad: Tensor, state: dict[str, Any], beta: float) -> None:
    """Takes a gradient into Shampoo's statistics: L = βL + (1−β)GGᵀ, R = βR + (1−β)GᵀG."""
    if "L" in state:
        state["L"].addmm_(grad, grad.T, beta=beta, alpha=1 - beta)
    if "R" in state:
        state["R"].addmm_(grad.T, grad, beta=beta, alpha=1 - beta)


def eigenvectors(matrix: Tensor) -> Tensor:
    """The eigenvectors of a symmetric matrix, those of large eigenvalues first."""
    vectors: Tensor = torch.linalg.eigh(matrix).eigenvectors
    return _by_rows(vectors.flip(1))


def _by_rows(basis: Tensor) -> Tensor:
    """The same, row after row: LAPACK gives columns, checkpoints keep rows, and products of them differ."""
    return basis.contiguous()


def turn_basis(state: dict[str, Any]) -> None:
    """Moves the basis by one power iteration and QR, and takes m and v along."""
    average = turn_back(state["exp_avg"], state)
    for axis, side in enumerate("LR"):
        if side not in state:
            continue
        basis = state[f"Q{side}"]
        product = state[side] @ basis
        order = (basis * product).sum(0).argsort(descending=True)
        state["exp_avg_sq"] = state["exp_avg_sq"].index_select(axis, order)
        state[f"Q{side}"] = _by_rows(torch.linalg.qr(product[:, order]).Q)
    state["exp_avg"] = turn(average, state)
