"""Factorization machine: second-order interactions of equally wide fields."""

from __future__ import annotations

from torch import Tensor


def factorization_machine(fields: Tensor) -> Tensor:
    """Σ_{i<j} v_i ∘ v_j for fields v [rows, fields, dim], as [rows, dim].

    Computed as ½((Σ v)² − Σ v²): linear instead of quadratic in the number of fields. The sum
    over `dim` of the result is the FM's second-order term Σ_{i<j} ⟨v_i, v_j⟩.
    Rendle 2010, https://doi.org/10.1109/ICDM.2010.127
    """
    total = fields.sum(1)
    return 0.5 * (total * total - (fields * fields).sum(1))


def split_fields(x: Tensor, dim: int) -> Tensor:
    """x [rows, fields · dim] as [rows, fields, dim]."""
    return x.reshape(x.shape[0], x.shape[1] // dim, dim)
