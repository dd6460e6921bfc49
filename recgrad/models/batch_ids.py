"""The ids of a batch on their way to an embedding engine, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from recgrad.data.batch import Batch, KeyedJagged


class EmbeddedIds(Protocol):
    """What an embedding engine returns."""

    def pooled(self, names: Sequence[str]) -> Tensor:
        """[rows, sum of widths] of these lookups."""

    def sequence(self, name: str) -> Tensor:
        """[positions, width] of this lookup."""


class BatchIds:
    """Hands the ids of batches to an engine, which may have been sent to other ranks before.

    Args:
        keys: row features with ids, as the engine knows them.
        sequence_keys: sequence features with ids.
    """

    def __init__(self, keys: tuple[str, ...], sequence_keys: tuple[str, ...]) -> None:
        self.keys = keys
        self.sequence_keys = sequence_keys
        # By the identity of its batch, which is kept with it so that no other can take its place.
        self._sent: dict[int, tuple[Batch, Any]] = {}

    def look_up(self, batch: Batch, engine: Any, device: torch.device) -> EmbeddedIds:
        """The embeddings of a batch's ids, on `device`; ids that were sent are taken from there."""
        _, sent = self._sent.pop(id(batch), (batch, None))
        return _Once(engine(*self._aligned(batch)) if sent is None else engine(sent), device)

    def prepare(self, batch: Batch, engine: Any) -> list[tuple[Batch, Any]]:
        """The ids of a batch and of its negatives, checked, for `send`. Other ranks are not asked."""
        batches = [batch] if batch.negatives is None else [batch, batch.negatives]
        return [(one, engine.prepare(*self._aligned(one))) for one in batches]

    def send(self, prepared: Sequence[tuple[Batch, Any]], engine: Any) -> None:
        """Send the ids of a batch to other ranks; the next `look_up` of the batch takes them from there."""
        for _, ids in prepared:
            engine.send(ids)
        self._sent = {id(batch): (batch, ids) for batch, ids in prepared}

    def drop_sent(self) -> None:
        """Await what was sent ahead and is not needed, so that no rank leaves while others still receive."""
        for _, ids in self._sent.values():
            ids.arrive()
        self._sent = {}

    def _aligned(self, batch: Batch) -> tuple[KeyedJagged, KeyedJagged | None]:
        ids = align(batch.sparse, self.keys, batch.size)
        if not self.sequence_keys:
            return ids, None
        sequences = batch.sequence_sparse or KeyedJagged(
            (), batch.sparse.values[:0], batch.sparse.lengths[:0], ()
        )
        return ids, align(sequences, self.sequence_keys, 0)


class _Once:
    """An engine's output on a device; it hands out the same columns once, so that they have one gradient."""

    def __init__(self, embedded: EmbeddedIds, device: torch.device) -> None:
        self.embedded = embedded
        self.device = device
        self.taken: dict[tuple[str, ...], Tensor] = {}

    def pooled(self, names: Sequence[str]) -> Tensor:
        key = tuple(names)
        if key not in self.taken:
            self.taken[key] = self.embedded.pooled(names).to(self.device)
        return self.taken[key]

    def sequence(self, name: str) -> Tensor:
        # No lookup is both pooled and a sequence, so that one name is one key.
        if (name,) not in self.taken:
            self.taken[(name,)] = self.embedded.sequence(name).to(self.device)
        return self.taken[(name,)]


def align(ids: KeyedJagged, keys: tuple[str, ...], rows: int) -> KeyedJagged:
    """The same ids under exactly these keys; a key that `ids` lacks has `rows` empty bags.

    A batch of one tower's features alone, as negative items are, thus goes through the engine
    of both towers.
    """
    if ids.keys == keys:
        return ids
    bags = dict(zip(ids.keys, ids.bag_counts, strict=True))
    ends = dict(zip(ids.keys, accumulate(ids.bag_counts), strict=True))
    empty = ids.lengths.new_zeros(rows)
    lengths, spans = [], []
    for key in keys:
        if key in ends:
            start, end = ends[key] - bags[key], ends[key]
            lengths.append(ids.lengths[start:end])
            spans.append(slice(int(ids.offsets[start]), int(ids.offsets[end])))
        else:
            lengths.append(empty)
    return KeyedJagged(
        keys,
        torch.cat([ids.values[:0], *(ids.values[span] for span in spans)]),
        torch.cat([empty[:0], *lengths]),
        tuple(bags.get(key, rows) for key in keys),
        None if ids.weights is None else torch.cat([ids.weights[:0], *(ids.weights[s] for s in spans)]),
        ids.single and len(spans) == len(keys),
    )
