"""Click data whose ids change daily: what room for some of them costs, and what hashing does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from online.subject import Subject, keys_of
from results.bars import Bar

from recgrad.embedding.living import COUNT, DISTANCE, LAST, LivingSpec

Array = Any
KINDS: dict[str, dict[str, Any]] = {
    "dynamicemb STEP": {"policy": LAST},
    "zch lru": {"policy": LAST, "interval": 5, "fallback": True},
    "zch distance_lfu, exponent 2": {"policy": DISTANCE, "interval": 5, "fallback": True, "decay": 2.0},
    "zch distance_lfu, exponent 2, interval 1": {"policy": DISTANCE, "fallback": True, "decay": 2.0},
    "zch distance_lfu, exponent 1": {"policy": DISTANCE, "interval": 5, "fallback": True},
    "dynamicemb LFU": {"policy": COUNT},
}
RECOMMENDED = list(KINDS)[:4]  # what docs/online.md says to take where ids vanish: the bars are for these


def auc(scores: Array, labels: Array) -> float:
    """The share of pairs in the right order."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    positives = labels.sum()
    return float(
        (ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * (len(labels) - positives))
    )


class Drift:
    """Clicks on ids, of which some are new each day and as many are gone: logit = the sum of two effects."""

    days, active, fresh, batch, batches = 20, 20_000, 8_000, 4096, 24

    def __init__(self) -> None:
        self.total = self.active + (self.days - 1) * self.fresh
        self.random = np.random.default_rng(3)
        self.effects = self.random.normal(0, 1.2, (self.total, 2))

    def rows(self, day: int, count: int) -> tuple[Array, Array]:
        """Ids [count, 2] of a day and their labels."""
        share = self.random.random((count, 2)) ** 2  # some are much more frequent
        own = (
            (np.random.default_rng(day).permutation(self.active)[(share * self.active).astype(int)])
            + day * self.fresh
        )
        logits = self.effects[own[:, 0], 0] + self.effects[own[:, 1], 1]
        return own, self.random.random(count) < 1 / (1 + np.exp(-logits))

    def run(self, subjects: Sequence[tuple[Subject, int]]) -> dict[str, float]:
        """Mean AUC over the last days on rows of the day, after it was trained on; ids hashed where asked."""
        found: dict[str, list[float]] = {subject.name: [] for subject, _ in subjects}
        for day in range(self.days):
            train = [self.rows(day, self.batch) for _ in range(self.batches)]
            test, labels = self.rows(day, 40_000)
            for subject, buckets in subjects:
                for ids, clicks in train:
                    out = subject.engine(subject.ids(_hashed(ids, buckets))).pooled(subject.keys).sum(dim=1)
                    loss = torch.nn.functional.binary_cross_entropy_with_logits
                    loss(out, torch.from_numpy(clicks).float(), reduction="sum").backward()
                    subject.optimizer.step()
                    subject.optimizer.zero_grad()
                subject.engine.eval()
                with torch.no_grad():
                    scores = (
                        subject.engine(subject.ids(_hashed(test, buckets))).pooled(subject.keys).sum(dim=1)
                    )
                subject.engine.train()
                found[subject.name].append(auc(scores.numpy(), labels))
        return {name: float(np.mean(values[-6:])) for name, values in found.items()}


def _hashed(ids: Array, buckets: int) -> Array:
    return (keys_of(ids) % np.uint64(buckets)).astype(np.int64) if buckets else ids


def bench_drift() -> list[Bar]:
    """AUC with room for 30 % of all ids ever seen, against room for all and against hashing into as many."""
    drift = Drift()
    small, all_ids, init_fn = int(0.3 * drift.total), drift.total, "zeros_"
    subjects = [(Subject("hashed", None, small, tables=2, dim=1, init_fn=init_fn), 0)]
    for name, settings in KINDS.items():
        for room, capacity in (("", small), (" with room for all", all_ids)):
            spec = LivingSpec(capacity, init_fn=init_fn, **settings)
            subjects.append((Subject(name + room, spec, 0, tables=2, dim=1), 0))
    found = drift.run([(subject, small if subject.name == "hashed" else 0) for subject, _ in subjects])
    bars = []
    for name in KINDS:
        own, whole, hashed = found[name], found[f"{name} with room for all"], found["hashed"]
        note = f"{own:.4f}, with room for all {whole:.4f}, hashed {hashed:.4f}"
        if name not in RECOMMENDED:
            print(f"    {name}, where ids vanish not recommended: {note}")
            continue
        bars.append(Bar(f"AUC lost by {name}, room for 30 % of ids", whole - own, 0.002, False, note))
        bars.append(Bar(f"AUC won by {name} over hashing", own - hashed, 0.0, True, note))
    return bars
