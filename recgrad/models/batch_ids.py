"""The ids of a batch on their way to an embedding engine, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from recgrad.data.batch import Batch, KeyedJagged
from recgrad.embedding.engine import EmbeddedIds, EmbeddingEngine, PreparedIds
from recgrad.models.field_columns import Field, FieldColumns
from recgrad.nn.joining import note_room


@dataclass(frozen=True)
class PreparedBatch:
    """The ids of a batch, and of its negatives where it has some, on their way into an engine."""

    ids: PreparedIds
    negatives: PreparedIds | None = None

    def send(self) -> None:
        """Begin to send them to other ranks, which all are to do."""
        self.ids.send()
        if self.negatives is not None:
            self.negatives.send()

    def arrive(self) -> None:
        """Wait for what was sent and will not be looked up."""
        self.ids.arrive()
        if self.negatives is not None:
            self.negatives.arrive()


@dataclass(frozen=True)
class BatchIds:
    """Which ids of a batch an engine takes, in which order.

    Attributes:
        keys: row features with ids, as the engine knows them.
        sequence_keys: sequence features with ids.
        fields: the engine's pooled lookups, by name.
    """

    keys: tuple[str, ...]
    sequence_keys: tuple[str, ...]
    fields: Mapping[str, Field]

    def prepare(self, batch: Batch, engine: EmbeddingEngine) -> PreparedBatch:
        """The ids of a batch and of its negatives. Other ranks are not asked."""
        negatives = None if batch.negatives is None else engine.prepare(*self._aligned(batch.negatives))
        return PreparedBatch(engine.prepare(*self._aligned(batch)), negatives)

    def look_up(
        self, batch: Batch, engine: EmbeddingEngine, device: torch.device, ids: PreparedIds | None = None
    ) -> EmbeddedIds:
        """The embeddings of a batch's ids, on `device`; `ids` if they are on their way already."""
        embedded = engine(*self._aligned(batch)) if ids is None else ids.look_up()
        return _Once(embedded, device, FieldColumns(engine, self.fields, batch.sparse))

    def _aligned(self, batch: Batch) -> tuple[KeyedJagged, KeyedJagged | None]:
        ids = align(batch.sparse, self.keys, batch.size)
        if not self.sequence_keys:
            return ids, None
        sequences = batch.sequence_sparse or KeyedJagged(
            (), batch.sparse.values[:0], batch.sparse.lengths[:0], ()
        )
        return ids, align(sequences, self.sequence_keys, 0)


class _Once(EmbeddedIds):
    """An engine's output on a device; it hands out the same columns once, so that they have one gradient."""

    def __init__(self, embedded: EmbeddedIds, device: torch.device, columns: FieldColumns) -> None:
        self.embedded = embedded
        self.device = device
        self.columns = columns
        self.taken: dict[tuple[str, ...], Tensor] = {}

    def pooled(self, names: Sequence[str]) -> Tensor:
        key = tuple(names)
        if key not in self.taken:
            output = self.columns.note(self.embedded.pooled(names).to(self.device), key)
            here = self.device.type == "cpu"
            self.taken[key] = note_room(output, self.embedded.take_room(names) if here else 0)
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
