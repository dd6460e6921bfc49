"""Equal tables with their optimizer, the time of their steps, and a stream of ids to give them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from recgrad.embedding.living import NUM_ROWS, LivingSpec
from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse import SPARSE_OPTIMIZERS

TABLES, BATCH, DIM = 26, 8192, 16
FAR = 0x1F3D5B79ABCDEF01  # ids lie far apart
NEW = 0.02  # of a batch's ids
Array = Any


class Stream:
    """Ids of one table after another as numbers: all that have room once, then known ones and some new.

    Attributes:
        next_id: numbers below it have been seen.
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        self.capacity, self.next_id, self._first = capacity, 0, 0
        self._random = np.random.default_rng(seed)

    def fill(self, tables: int = TABLES) -> Iterator[Array]:
        """Batches [rows, tables] of all numbers below the capacity, in order."""
        while self.next_id < self.capacity:
            numbers = self.next_id + np.arange(BATCH) % self.capacity
            yield np.repeat(numbers[:, None], tables, axis=1)
            self.next_id += BATCH

    def known(self, tables: int = TABLES) -> Iterator[Array]:
        """The batches of `fill` again."""
        for first in range(0, self.next_id, BATCH):
            yield np.repeat((first + np.arange(BATCH))[:, None], tables, axis=1)

    def batch(self, tables: int = TABLES) -> Array:
        """A batch at capacity: NEW of its ids are new, and as many of the oldest are not seen again."""
        numbers = self._random.integers(self._first, self.next_id, (BATCH, tables))
        fresh = self._random.random((BATCH, tables)) < NEW
        count = int(BATCH * NEW)
        numbers[fresh] = self.next_id + self._random.integers(0, count, int(fresh.sum()))
        self.next_id, self._first = self.next_id + count, self._first + count
        return numbers


def keys_of(numbers: Array) -> Array:
    """Ids of 63 bits, one for each number."""
    return (numbers.astype(np.uint64) * np.uint64(FAR)) % np.uint64(NUM_ROWS - 1)


class Subject:
    """An engine of equal tables with its optimizer, and the time of its steps."""

    def __init__(
        self,
        name: str,
        living: LivingSpec | None,
        rows: int,
        tables: int = TABLES,
        dim: int = DIM,
        init_fn: str | None = None,
        optimizer: str = "adagrad_optimizer",
        lr: float = 0.05,
    ) -> None:
        storage, height = ("AUTO", NUM_ROWS) if living else ("COMPACT", rows)
        specs = [
            TableSpec(f"t{i}", height, dim, init_fn, storage=storage, living=living) for i in range(tables)
        ]
        keys = [f"f{i}" for i in range(tables)]
        lookups = [LookupSpec(key, key, spec.name) for key, spec in zip(keys, specs, strict=True)]
        self.name, self.living, self.keys = name, living, keys
        self.engine = LocalEngine(specs, lookups, keys=keys)
        self.optimizer = SPARSE_OPTIMIZERS[optimizer](self.engine, lr=lr)
        self.seconds: list[float] = []

    def step(self, numbers: Array, gradient: torch.Tensor) -> None:
        """Lookup, backward and update."""
        ids = self.ids(numbers)
        begin = time.process_time()
        self.engine(ids).pooled(self.keys).backward(gradient)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seconds.append(time.process_time() - begin)

    def look_up(self, numbers: Array) -> float:
        """CPU time of a lookup in evaluation."""
        ids = self.ids(numbers)
        self.engine.eval()
        begin = time.process_time()
        with torch.no_grad():
            self.engine(ids).pooled(self.keys)
        seconds = time.process_time() - begin
        self.engine.train()
        return seconds

    def ids(self, numbers: Array) -> Ids:
        """Ids [rows, tables], a feature after another."""
        flat = np.ascontiguousarray(numbers.T).reshape(-1)
        values = keys_of(flat).astype(np.int64) if self.living else flat
        bags = numbers.shape[0]
        ones = torch.ones(len(flat), dtype=torch.int32)
        return Ids(torch.from_numpy(values), ones, [bags] * numbers.shape[1], None, True)
