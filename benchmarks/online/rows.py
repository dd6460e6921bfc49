"""Whether each of many vectors is that of its own id, by a dictionary in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from online.subject import Subject, keys_of
from results.bars import Bar

from recgrad.embedding.living import COUNT, LAST, LivingSpec
from recgrad.embedding.local.living.table import LivingTable

Array = Any
BATCH, DIM, CAPACITY = 50_000, 4, 200_000
INIT = "uniform_,a=-1,b=1"


class Known:
    """What the vector of each id must be: as drawn for the id, and 1 more for each time it was seen."""

    def __init__(self, most: int) -> None:
        self._place: dict[int, int] = {}
        self._vectors = np.empty((most, DIM), np.float32)
        self._used = 0
        # Never trained, and with room for all: says how the vector of an id is drawn.
        engine = Subject("all", LivingSpec(most, COUNT, init_fn=INIT), 0, tables=1, dim=DIM).engine
        self._drawn: Any = engine.tables["t0"]

    def forget(self, keys: Array) -> None:
        """Ids that lost their rows begin anew."""
        for key in keys.tolist():
            self._place.pop(key, None)

    def places(self, keys: Array) -> Array:
        """Where the vectors of distinct ids are; new ones as they are drawn."""
        new = [key for key in keys.tolist() if key not in self._place]
        self._vectors[self._used : self._used + len(new)] = self._drawn.initial(np.array(new, np.int64))
        self._place.update(zip(new, range(self._used, self._used + len(new)), strict=True))
        self._used += len(new)
        return np.array([self._place[key] for key in keys.tolist()])

    def vectors(self, places: Array) -> Array:
        """What they must be now."""
        return self._vectors[places]

    def see(self, places: Array, times: Array) -> None:
        """An update of rate 1 with gradients of −1 adds the number of occurrences."""
        self._vectors[places] += times[:, None].astype(np.float32)


def bench_rows(events: int = 10_000_000) -> list[Bar]:
    """Vectors that differ in any bit from those of the dictionary, over ids that come and go."""
    bars = []
    for name, policy in (("LFU", COUNT), ("STEP", LAST)):
        random, half = np.random.default_rng(1), events // 2
        spec = LivingSpec(CAPACITY, policy, init_fn=INIT)
        subject = Subject("rows", spec, 0, tables=1, dim=DIM, optimizer="sgd_optimizer", lr=1.0)
        table = subject.engine.tables["t0"]
        assert isinstance(table, LivingTable)
        table.log_gone()
        known, wrong = Known(half), 0
        for step in range(half // BATCH):
            numbers = random.zipf(1.1, (BATCH, 1)) % 1_000_000 + 20_000 * step
            out = subject.engine(subject.ids(numbers)).pooled(subject.keys)
            known.forget(table.take_gone())
            keys, inverse, times = np.unique(
                keys_of(numbers[:, 0]).astype(np.int64), return_inverse=True, return_counts=True
            )
            places = known.places(keys)
            wrong += int((out.detach().numpy() != known.vectors(places)[inverse]).any(axis=1).sum())
            out.backward(-torch.ones(BATCH, DIM))
            subject.optimizer.step()
            subject.optimizer.zero_grad()
            known.see(places, times)
        turnover = table.turnover()
        note = f"{turnover.admitted:,} admitted, {turnover.evicted:,} evicted"
        bars.append(Bar(f"wrong rows in {half:,} events, {name}", wrong, 0, False, note))
    return bars
