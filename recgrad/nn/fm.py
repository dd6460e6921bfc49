"""Factorization machine: second-order interactions of equally wide fields."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recgrad.nn.field_ids import carry_field_ids
from recgrad.nn.relu_layers import runs_kernels

MIN_FIELDS = 1 << 14  # numbers in all fields: below, torch's operations are as fast


def factorization_machine(fields: Tensor) -> Tensor:
    """Σ_{i<j} v_i ∘ v_j for fields v [rows, fields, dim], as [rows, dim].

    Computed as ½((Σ v)² − Σ v²): linear instead of quadratic in the number of fields. The sum
    over `dim` of the result is the FM's second-order term Σ_{i<j} ⟨v_i, v_j⟩.
    Rendle 2010, https://doi.org/10.1109/ICDM.2010.127
    """
    total = fields.sum(1)
    return 0.5 * (total * total - (fields * fields).sum(1))


def interacting(x: Tensor, first: int, fields: int, dim: int) -> tuple[Tensor, Tensor]:
    """`factorization_machine` of columns of x, [rows, dim], and x itself, for what else reads it.

    Whoever takes x from here leaves its gradient here as well, where one pass adds that of the
    interactions; elsewhere autograd would write both and then add them.

    Args:
        x: [rows, width].
        first: the column where the fields begin.
        fields: how many lie there side by side.
        dim: width of a field.
    """
    if runs_kernels(x) and x.dim() == 2 and x.shape[0] * fields * dim >= MIN_FIELDS:
        found, same = _Interacting.apply(x, first, fields, dim)  # type: ignore[no-untyped-call]
        return found, carry_field_ids(same, [x])
    return factorization_machine(split_fields(x[:, first : first + fields * dim], dim)), x


class _Interacting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, first: int, fields: int, dim: int) -> tuple[Tensor, Tensor]:
        # Imported here, since it brings numba along.
        from recgrad.nn.fm_kernels import interactions

        ctx.place = (first, fields)
        ctx.set_materialize_grads(False)
        rows = x if x.stride(1) == 1 else x.contiguous()
        out = x.new_empty(x.shape[0], dim)
        interactions(rows, first, fields, out)
        ctx.save_for_backward(rows)
        return out, x

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_y: Tensor | None, other: Tensor | None
    ) -> tuple[Tensor | None, None, None, None]:
        from recgrad.nn.fm_kernels import interactions_backward

        if of_y is None:
            return other, None, None, None
        (x,) = ctx.saved_tensors
        out = torch.empty(x.shape)
        if other is not None and other.stride(1) != 1:
            other = other.contiguous()
        first, fields = ctx.place
        interactions_backward(x, first, fields, of_y.contiguous(), other, out)
        return out, None, None, None


def split_fields(x: Tensor, dim: int) -> Tensor:
    """x [rows, fields · dim] as [rows, fields, dim]."""
    return x.reshape(x.shape[0], x.shape[1] // dim, dim)
