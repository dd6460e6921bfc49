"""How the lookups of a model become features of TorchRec's collections.

A table lies in one collection. One whose lookups all pool rows is in the EmbeddingBagCollection,
which sums bags where the rows lie. A table with a sequence lookup is in the
EmbeddingCollection of its width, which hands out single vectors; bags over it are summed on the rank that
asked.

    lookups ─▶ map_features ─▶ FeatureMap ─▶ collections, ids ═▶ TorchRec ═▶ Embedded ─▶ outputs by lookup
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from recgrad.embedding.engine import EmbeddedIds, IdsLike
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.errors import nearest


@dataclass(frozen=True)
class FeatureMap:
    """The features of all collections, and which lookup takes which.

    Attributes:
        lookups: by name.
        dims: by lookup, the width of its table.
        feature: by lookup, the feature of its table's collection.
        from_rows: lookups whose table is in an EmbeddingCollection.
        place: by lookup, its key's place among the keys of its kind.
        pooled: features by table, of the EmbeddingBagCollection.
        rows: features by table, of the EmbeddingCollections.
        bag_inputs: features of the first in order, and the keys they take their ids from (None: all as
            they are).
        bag_means: for each of them, whether a bag's mean is wanted.
        row_inputs: the same of the others, by width; keys are counted pooled ones first, then sequence ones.
        divided: tables of an EmbeddingCollection with bags whose mean is taken, or with weighted ids.
        smallest: of row keys, then of sequence keys: keys, rows and name of each key's smallest table.
    """

    lookups: Mapping[str, LookupSpec]
    dims: Mapping[str, int]
    feature: Mapping[str, str]
    from_rows: frozenset[str]
    place: Mapping[str, int]
    pooled: Mapping[str, tuple[str, ...]]
    rows: Mapping[str, tuple[str, ...]]
    bag_inputs: tuple[tuple[str, ...], tuple[int, ...] | None]
    bag_means: tuple[bool, ...]
    row_inputs: Mapping[int, tuple[tuple[str, ...], tuple[int, ...] | None]]
    smallest: tuple[tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]], ...]
    divided: frozenset[str]

    @property
    def place_of_bags(self) -> dict[str, int]:
        """By feature of the EmbeddingBagCollection, the place of its key."""
        return {own: self.place[name] for name, own in self.feature.items() if name not in self.from_rows}

    def limits(self, ids: bool, sequences: bool) -> tuple[Sequence[str], Sequence[int], Sequence[str]]:
        """Keys, with the rows and the name of the smallest table that each is looked up in."""
        chosen = [part for part, given in zip(self.smallest, (ids, sequences)) if given]
        keys, rows, tables = zip(*chosen) if chosen else ((), (), ())
        return (
            [key for part in keys for key in part],
            [n for part in rows for n in part],
            [name for part in tables for name in part],
        )


def map_features(
    specs: Mapping[str, TableSpec],
    lookups: Sequence[LookupSpec],
    keys: Sequence[str],
    sequence_keys: Sequence[str],
    *,
    weighted: bool,
) -> FeatureMap:
    """The features for these lookups; `weighted` when ids come with weights."""
    by_row = {spec.table for spec in lookups if spec.sequence}
    pooled: dict[str, dict[str, int]] = {}
    rows: dict[str, dict[str, int]] = {}
    feature, place = {}, {}
    for spec in lookups:
        at = (sequence_keys if spec.sequence else keys).index(spec.key)
        name = f"{spec.table}|{spec.key}|{'sequence' if spec.sequence else spec.pooling}"
        feature[spec.name], place[spec.name] = name, at
        kind = rows if spec.table in by_row else pooled
        kind.setdefault(spec.table, {})[name] = at + len(keys) * spec.sequence
    bag_inputs = _inputs(pooled, len(keys))
    return FeatureMap(
        lookups={spec.name: spec for spec in lookups},
        dims={spec.name: specs[spec.table].dim for spec in lookups},
        feature=feature,
        from_rows=frozenset(spec.name for spec in lookups if spec.table in by_row),
        place=place,
        pooled={table: tuple(own) for table, own in pooled.items()},
        rows={table: tuple(own) for table, own in rows.items()},
        bag_inputs=bag_inputs,
        bag_means=tuple(name.endswith("|mean") for name in bag_inputs[0]),
        row_inputs={
            dim: _inputs(
                {table: own for table, own in rows.items() if specs[table].dim == dim},
                len(keys) + len(sequence_keys),
            )
            for dim in dict.fromkeys(specs[table].dim for table in rows)
        },
        smallest=tuple(
            _smallest(names, [s for s in lookups if s.sequence == sequence], specs)
            for names, sequence in ((keys, False), (sequence_keys, True))
        ),
        divided=frozenset(
            spec.table for spec in lookups if spec.table in by_row and (weighted or spec.pooling == "mean")
        ),
    )


def _inputs(
    features: Mapping[str, Mapping[str, int]], num_keys: int
) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    places = {name: at for own in features.values() for name, at in own.items()}
    ordered = sorted(places, key=lambda name: places[name])
    chosen = tuple(places[name] for name in ordered)
    return tuple(ordered), None if chosen == tuple(range(num_keys)) else chosen


def _smallest(
    keys: Sequence[str], lookups: Sequence[LookupSpec], specs: Mapping[str, TableSpec]
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
    """For each key the rows and name of the smallest of its tables; a key of none takes any id."""
    rows, names = [], []
    for key in keys:
        tables = [specs[spec.table] for spec in lookups if spec.key == key]
        least = min(tables, key=lambda spec: spec.num_rows, default=None)
        rows.append(2**63 - 1 if least is None else least.num_rows)
        names.append("" if least is None else least.name)
    return tuple(keys), tuple(rows), tuple(names)


class Bags(Protocol):
    """Sums of a rank's bags."""

    def columns(self, features: Sequence[str]) -> Tensor:
        """[rows, columns of these features side by side]."""


class KeyedBags:
    """Sums of bags in TorchRec's KeyedTensor, of which the first `rows` are this rank's."""

    def __init__(self, keyed: Any, rows: int) -> None:
        self._keyed = keyed
        self._rows = rows
        self._parts: dict[str, Tensor] | None = None

    def columns(self, features: Sequence[str]) -> Tensor:
        """[rows, columns of these features side by side]."""
        values: Tensor = self._keyed.values()
        values = values if len(values) == self._rows else values[: self._rows]
        if list(features) == self._keyed.keys():
            return values
        if self._parts is None:
            # Split once: a slice for each lookup would get a gradient as large as all of them together.
            parts = torch.split_with_sizes(values, self._keyed.length_per_key(), dim=1)
            self._parts = dict(zip(self._keyed.keys(), parts, strict=True))
        wanted = [self._parts[feature] for feature in features]
        return wanted[0] if len(wanted) == 1 else torch.cat(wanted, dim=1)


class Embedded(EmbeddedIds):
    """Sums of bags and vectors of ids, as TorchRec hands them out.

    Args:
        features: which lookup takes which feature.
        rows: of the batch; what TorchRec gives beyond them stems from other ranks' larger batches.
        ids, sequences: what was looked up.
        bags: sums of bags by feature, or None.
        vectors: TorchRec's JaggedTensors by width and feature.
    """

    def __init__(
        self,
        features: FeatureMap,
        rows: int,
        ids: IdsLike | None,
        sequences: IdsLike | None,
        bags: Bags | None,
        vectors: Any,
    ) -> None:
        self._features = features
        self._rows = rows
        self._ids = ids
        self._sequences = sequences
        self._bags = bags
        self._vectors = vectors

    def pooled(self, names: Sequence[str]) -> Tensor:
        """The outputs of these lookups side by side, [rows, sum of dims]."""
        if not names:
            raise ValueError("pooled needs at least one lookup name, got none")
        for name in names:
            self._check(name, sequence=False)
        if not any(name in self._features.from_rows for name in names):
            return self._columns(names)
        parts = [
            self._summed(name) if name in self._features.from_rows else self._columns([name])
            for name in names
        ]
        return torch.cat(parts, dim=1)

    def sequence(self, name: str) -> Tensor:
        """The output of a sequence lookup, [positions, dim]."""
        self._check(name, sequence=True)
        return self._summed(name)

    def _check(self, name: str, sequence: bool) -> None:
        spec = self._features.lookups.get(name)
        if spec is None or spec.sequence != sequence:
            known = [key for key, spec in self._features.lookups.items() if spec.sequence == sequence]
            kind = "sequence" if sequence else "pooled"
            raise KeyError(f"no {kind} lookup '{name}'{nearest(name, known)}")

    def _columns(self, names: Sequence[str]) -> Tensor:
        """Bags side by side."""
        assert self._bags is not None
        return self._bags.columns([self._features.feature[name] for name in names])

    def _summed(self, name: str) -> Tensor:
        """The vectors of single ids, added up by bag."""
        spec = self._features.lookups[name]
        ids = self._sequences if spec.sequence else self._ids
        assert ids is not None
        dim = self._features.dims[name]
        found: Tensor = self._vectors[dim][self._features.feature[name]].values()
        vectors = found.view(-1, dim)
        lengths, first = self._lengths(name)
        if ids.weights is not None:
            weights = ids.weights[first : first + len(vectors)]
            vectors = vectors * weights.to(vectors.device).unsqueeze(1)
        if ids.single:
            return vectors
        bag = torch.repeat_interleave(torch.arange(len(lengths)), lengths.to(torch.int64))
        bag, lengths = bag.to(vectors.device), lengths.to(vectors.device)
        sums = vectors.new_zeros(len(lengths), vectors.shape[1]).index_add(0, bag, vectors)
        return sums / lengths.clamp(min=1).unsqueeze(1) if spec.pooling == "mean" else sums

    def _lengths(self, name: str) -> tuple[Tensor, int]:
        """The lengths of a lookup's bags, and where its ids begin."""
        spec = self._features.lookups[name]
        ids = self._sequences if spec.sequence else self._ids
        assert ids is not None
        place = self._features.place[name]
        first_bag = sum(ids.bag_counts[:place])
        lengths = ids.lengths[first_bag : first_bag + ids.bag_counts[place]]
        first = first_bag if ids.single else int(ids.lengths[:first_bag].sum())
        return lengths, first
