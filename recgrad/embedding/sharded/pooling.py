"""What one forward pass of the sharded engine looked up; tensors are taken from it by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recgrad.embedding.local.engine import IdsLike
from recgrad.embedding.sharded.features import FeatureMap
from recgrad.errors import nearest


class Embedded:
    """Sums of bags and vectors of ids, as TorchRec hands them out.

    Args:
        features: which lookup takes which feature.
        rows: of the batch; what TorchRec gives beyond them stems from other ranks' larger batches.
        ids, sequences: what was looked up.
        bags: TorchRec's KeyedTensor, or None.
        vectors: TorchRec's JaggedTensors by width and feature.
    """

    def __init__(
        self,
        features: FeatureMap,
        rows: int,
        ids: IdsLike | None,
        sequences: IdsLike | None,
        bags: Any,
        vectors: Any,
    ) -> None:
        self._features = features
        self._rows = rows
        self._ids = ids
        self._sequences = sequences
        self._bags = bags
        self._vectors = vectors
        self._parts: dict[str, Tensor] | None = None

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
        features = [self._features.feature[name] for name in names]
        values: Tensor = self._bags.values()
        values = values if len(values) == self._rows else values[: self._rows]
        if features == self._bags.keys():
            return values
        if self._parts is None:
            # Split once: a slice for each lookup would get a gradient as large as all of them together.
            parts = torch.split_with_sizes(values, self._bags.length_per_key(), dim=1)
            self._parts = dict(zip(self._bags.keys(), parts, strict=True))
        wanted = [self._parts[feature] for feature in features]
        return wanted[0] if len(wanted) == 1 else torch.cat(wanted, dim=1)

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
