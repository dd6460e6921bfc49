"""Metrics of semantic-id models, which every evaluation of one has."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from recgrad.metrics.base import Metric, Value


class Reconstruction(Metric):
    """Mean of an error over all numbers of all vectors; a subclass says which."""

    higher_is_better = False
    compares: ClassVar[Literal["probabilities", "values", "ranks"]] = "values"
    total: Tensor
    numbers: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_sum("total")
        self.add_sum("numbers", dtype=torch.int64)

    def errors(self, found: Tensor, vectors: Tensor) -> Tensor:
        """The error of each number."""
        raise NotImplementedError

    def update(self, found: Tensor, vectors: Tensor, codes: Tensor) -> None:
        """Take in reconstructions and vectors [rows, dim], and codes [rows, levels]."""
        self.total = self.total + self.errors(found.double(), vectors.double()).sum()
        self.numbers = self.numbers + vectors.numel()

    def measure(self) -> Value:
        """The mean so far."""
        return self.total / self.numbers if self.numbers else self.undefined("there are no rows")


class SquaredReconstruction(Reconstruction):
    """Mean squared difference of vectors and their reconstructions."""

    config_name = "mse"

    def errors(self, found: Tensor, vectors: Tensor) -> Tensor:
        """The error of each number."""
        return (found - vectors).square()


class RelativeReconstruction(Reconstruction):
    """Mean of |x − x̂| / (max(|x|, |x̂|) + 10⁻⁴)."""

    config_name = "rel_loss"

    def errors(self, found: Tensor, vectors: Tensor) -> Tensor:
        """The error of each number."""
        return (vectors - found).abs() / (torch.maximum(vectors.abs(), found.abs()) + 1e-4)


class UniqueIds(Metric):
    """Mean over batches of distinct ids per row; it depends on the size of batches."""

    config_name = "unique_sid_ratio"
    higher_is_better = True
    compares: ClassVar[Literal["probabilities", "values", "ranks"]] = "values"
    total: Tensor
    batches: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_sum("total")
        self.add_sum("batches", dtype=torch.int64)

    def update(self, found: Tensor, vectors: Tensor, codes: Tensor) -> None:
        """Take in the codes [rows, levels] of a batch."""
        if len(codes):
            self.total = self.total + len(torch.unique(codes, dim=0)) / len(codes)
            self.batches = self.batches + 1

    def measure(self) -> Value:
        """The mean so far."""
        return self.total / self.batches if self.batches else self.undefined("there are no rows")


CODE_METRICS: tuple[type[Metric], ...] = (SquaredReconstruction, RelativeReconstruction, UniqueIds)
"""What an evaluation of a semantic-id model measures."""
