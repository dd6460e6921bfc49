"""A small engine, and batches with everything that makes updates difficult."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec


@dataclass
class Batch:
    values: np.ndarray
    lengths: np.ndarray
    weights: np.ndarray | None
    gradient: np.ndarray  # of the outputs, [rows, 2 · dim]

    def ids(self) -> Ids:
        rows = len(self.lengths) // 2
        weights = None if self.weights is None else torch.from_numpy(self.weights)
        return Ids(torch.from_numpy(self.values), torch.from_numpy(self.lengths), [rows, rows], weights)

    def row_gradients(self, dim: int, num_rows: int, limit: float = np.inf) -> tuple[np.ndarray, np.ndarray]:
        """Summed gradients of the one table in float64, and which rows were touched."""
        total, touched = np.zeros((num_rows, dim)), np.zeros(num_rows, bool)
        clipped = np.clip(self.gradient.astype(np.float64), -limit, limit)
        rows = len(self.lengths) // 2
        start = 0
        for bag, length in enumerate(self.lengths):
            key, row = divmod(bag, rows)
            for i in range(start, start + length):
                scale = 1.0 if self.weights is None else float(self.weights[i])
                scale /= length if key == 1 else 1  # the second lookup takes the mean
                total[self.values[i]] += scale * clipped[row, key * dim : (key + 1) * dim]
                touched[self.values[i]] = True
            start += length
        return total, touched


def make_batches(dim: int, num_rows: int, count: int, weighted: bool, seed: int = 0) -> list[Batch]:
    """Duplicates, empty bags, weights, a zero gradient now and then."""
    rng = np.random.default_rng(seed)
    batches = []
    for i in range(count):
        lengths = rng.integers(0, 4, 24).astype(np.int32)
        values = rng.integers(0, num_rows, lengths.sum())
        weights = rng.uniform(0.5, 2, len(values)).astype(np.float32) if weighted else None
        gradient = rng.normal(size=(12, 2 * dim)).astype(np.float32)
        gradient[rng.integers(0, 12)] = 0
        batches.append(Batch(values, lengths, weights, gradient * (i != 3)))
    return batches


def make_engine(dim: int, num_rows: int, name: str = "table", **spec: object) -> LocalEngine:
    """One table, looked up by a sum and by a mean."""
    table = TableSpec(name, num_rows, dim, **spec)  # type: ignore[arg-type]
    lookups = [LookupSpec("a", "a", name), LookupSpec("b", "b", name, pooling="mean")]
    return LocalEngine([table], lookups, keys=["a", "b"], seed=3)


def train(engine: LocalEngine, optimizer: torch.optim.Optimizer, batches: list[Batch]) -> None:
    for batch in batches:
        output = engine(batch.ids()).pooled(["a", "b"])
        output.backward(torch.from_numpy(batch.gradient))
        optimizer.step()


@pytest.fixture
def tools() -> object:
    class Tools:
        batches = staticmethod(make_batches)
        engine = staticmethod(make_engine)
        train = staticmethod(train)

    return Tools
