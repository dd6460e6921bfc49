"""A batch: encoded rows, made once by the loader and never rewritten.

Ids of all features lie in one array, feature after feature, so that the embedding engine
looks them all up in one call; dense features lie side by side in one matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor

from recgrad.data.encoded import Encoded, IdArrays

T = TypeVar("T")


@dataclass(frozen=True)
class KeyedDense:
    """Dense features side by side.

    Attributes:
        keys: feature names.
        dims: the width of each feature.
        values: float32 [rows, sum(dims)].
    """

    keys: tuple[str, ...]
    dims: tuple[int, ...]
    values: Tensor

    def __getitem__(self, key: str) -> Tensor:
        start, dim = self.columns[key]
        return self.values[:, start : start + dim]

    @cached_property
    def columns(self) -> dict[str, tuple[int, int]]:
        """The first column and the width of each feature."""
        ends = accumulate(self.dims)
        return {key: (end - dim, dim) for key, end, dim in zip(self.keys, ends, self.dims, strict=True)}


@dataclass(frozen=True)
class KeyedJagged:
    """Ids of several features, feature after feature, as TorchRec's KeyedJaggedTensor lays them out.

    A bag is what is pooled into one vector: the ids of a row, or of one position of a
    sequence. Feature f has `bag_counts[f]` bags; for row features that is the batch size.

    Attributes:
        keys: feature names.
        values: int64 [ids of feature 0, ids of feature 1, …].
        lengths: int32 [bags of feature 0, bags of feature 1, …], the number of ids in each bag.
        bag_counts: the number of bags of each feature.
        weights: float32, one for each id, or None when no feature is weighted.
        single: every bag holds exactly one id, so `lengths` need not be read.
    """

    keys: tuple[str, ...]
    values: Tensor
    lengths: Tensor
    bag_counts: tuple[int, ...]
    weights: Tensor | None = None
    single: bool = False

    def __getitem__(self, key: str) -> KeyedJagged:
        """One feature alone, as views."""
        i = self.keys.index(key)
        bags = slice(sum(self.bag_counts[:i]), sum(self.bag_counts[: i + 1]))
        first, last = int(self.offsets[bags.start]), int(self.offsets[bags.stop])
        weights = None if self.weights is None else self.weights[first:last]
        return KeyedJagged(
            (key,), self.values[first:last], self.lengths[bags], (self.bag_counts[i],), weights, self.single
        )

    @cached_property
    def offsets(self) -> Tensor:
        """int64 [bags + 1]: where each bag begins in `values`."""
        zero = torch.zeros(1, dtype=torch.int64, device=self.lengths.device)
        return torch.cat([zero, self.lengths.cumsum(0, dtype=torch.int64)])


@dataclass(frozen=True)
class JaggedDense:
    """A dense sequence feature: the positions of all rows one after another.

    Attributes:
        values: float32 [positions, width]; float64 of one number a position.
        lengths: int32 [rows], the number of positions of each row.
    """

    values: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Origin:
    """Where the rows of a batch came from, for error messages.

    Attributes:
        files: names of files; shared by all batches of a loader.
        file_index: int32 [rows], index into `files`.
        row: int64 [rows], row number in the file, from 0.
    """

    files: Sequence[str]
    file_index: Tensor
    row: Tensor


@dataclass(frozen=True)
class Comparison:
    """Which of a batch's negatives each row is compared with: all that are shared, but for some.

    Attributes:
        excluded: int64 [pairs, 2], rows and shared negatives that are not compared with each other.
        log_counts: float32 [shared], the logarithm of how often each shared negative is expected among the
            draws; None where that is not known.
        hard_rows: int64 [hard], ascending: the row that each of the last negatives belongs to, which no other
            row is compared with; None without hard ones.
        own: int64 [rows], which of the negatives is the row's own item, where they are the whole catalogue.
        own_rows: int64, as long as `own` and ascending: the row that each own item belongs to, where rows may
            have several or none; None where every row has one.
    """

    excluded: Tensor
    log_counts: Tensor | None = None
    hard_rows: Tensor | None = None
    own: Tensor | None = None
    own_rows: Tensor | None = None


@dataclass(frozen=True)
class NextItems:
    """The items of histories, for models that learn what comes next at every position.

    Attributes:
        items: int64 [events]: for each row the items of its history and then its own, as places in the
            batch's negatives.
        lengths: int64 [rows], the number of items of each history, so that a row has one event more.
        drawn: the place from which on negatives were drawn; 0 where they are the whole catalogue.
        same: int64 [pairs, 2]: items of events, and draws, that are the same; None for the whole catalogue.
        log_counts: float32 [draws], the logarithm of how often each is expected; None where all are there.
    """

    items: Tensor
    lengths: Tensor
    drawn: int = 0
    same: Tensor | None = None
    log_counts: Tensor | None = None


@dataclass(frozen=True)
class Batch:
    """Encoded rows.

    Attributes:
        size: the number of rows.
        dense: dense row features.
        sparse: id row features; a bag is a row.
        sequence_lengths: int32 [rows] by sequence feature: the number of positions of each row.
        sequence_sparse: id sequence features; a bag is one position of one row.
        sequence_dense: dense sequence features by name.
        precise: float64 [rows] by dense row feature that asks for it.
        labels: [rows] by label field; float32, or int64 for integer columns. Lists of labels lie one after
            another, those of the first row first.
        label_lengths: int64 [rows] by label field that has a list a row: the number of its labels.
        sample_weights: float32 [rows] by field.
        keys: int64 [rows] by field: group and session keys; strings are hashed.
        origin: where the rows came from.
        negatives: sampled items (features only), for two-tower models: those that all rows share, then the
            hard ones of single rows.
        comparison: which rows are compared with which negatives; each with all when None. Without `negatives`
            it is about the items of the other rows.
        next_items: the items of histories among the negatives.
    """

    size: int
    dense: KeyedDense
    sparse: KeyedJagged
    sequence_lengths: Mapping[str, Tensor] = field(default_factory=dict)
    sequence_sparse: KeyedJagged | None = None
    sequence_dense: Mapping[str, JaggedDense] = field(default_factory=dict)
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    sample_weights: Mapping[str, Tensor] = field(default_factory=dict)
    keys: Mapping[str, Tensor] = field(default_factory=dict)
    origin: Origin | None = None
    negatives: Batch | None = None
    comparison: Comparison | None = None
    next_items: NextItems | None = None
    precise: Mapping[str, Tensor] = field(default_factory=dict)
    label_lengths: Mapping[str, Tensor] = field(default_factory=dict)

    def name_row(self, row: int) -> str:
        """The row of a batch as errors name it."""
        if self.origin is None:
            return f"row {row} of the batch"
        file = self.origin.files[int(self.origin.file_index[row])]
        return f"row {int(self.origin.row[row])} of {file}"

    @classmethod
    def of(cls, encoded: Encoded, **more: Any) -> Batch:
        """A batch of encoded features, whose memory it shares, and of `more` fields."""
        lengths = {key: torch.from_numpy(rows) for key, rows in encoded.sequence_lengths.items()}
        sequences = encoded.sequence_sparse
        return cls(
            size=encoded.size,
            dense=KeyedDense(encoded.dense.keys, encoded.dense.dims, torch.from_numpy(encoded.dense.values)),
            sparse=_jagged(encoded.sparse),
            sequence_lengths=lengths,
            sequence_sparse=None if sequences is None else _jagged(sequences),
            sequence_dense={
                key: JaggedDense(torch.from_numpy(values), lengths[key])
                for key, values in encoded.sequence_dense.items()
            },
            precise={key: torch.from_numpy(values) for key, values in encoded.precise.items()},
            **more,
        )

    def with_inputs_on(self, device: torch.device) -> Batch:
        """The same batch with the dense inputs of a model on `device`; negatives are a batch of their own.

        Ids stay, since engines check and look them up on the host. Labels, weights and keys stay
        too: losses check them there and take what they need to the device.
        """
        if device.type == "cpu":
            return self
        return self._with_inputs(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """The same batch, what goes to a GPU in page-locked memory, so that copies run in the background."""
        pinned = self._with_inputs(_pin)
        return replace(
            pinned,
            labels=_map(self.labels, _pin),
            sample_weights=_map(self.sample_weights, _pin),
            keys=_map(self.keys, _pin),
            negatives=None if self.negatives is None else self.negatives.pin_memory(),
        )

    def _with_inputs(self, function: Callable[[Tensor], Tensor]) -> Batch:
        return replace(
            self,
            dense=_map(self.dense, function),
            sequence_lengths=_map(self.sequence_lengths, function),
            sequence_dense=_map(self.sequence_dense, function),
            comparison=_map(self.comparison, function),
            next_items=_map(self.next_items, function),
            precise=_map(self.precise, function),
        )


def _jagged(ids: IdArrays) -> KeyedJagged:
    weights = None if ids.weights is None else torch.from_numpy(ids.weights)
    values, lengths = torch.from_numpy(ids.values), torch.from_numpy(ids.lengths)
    return KeyedJagged(ids.keys, values, lengths, ids.bag_counts, weights, ids.single)


def _pin(tensor: Tensor) -> Tensor:
    return tensor.pin_memory()


def _map(value: T, function: Callable[[Tensor], Tensor]) -> T:
    """Apply `function` to every tensor in a tree of dataclasses and mappings."""
    result: Any = value
    if isinstance(value, Tensor):
        result = function(value)
    elif isinstance(value, Mapping):
        result = {key: _map(item, function) for key, item in value.items()}
    elif hasattr(value, "__dataclass_fields__"):
        changed = {item.name: _map(getattr(value, item.name), function) for item in fields(value)}  # type: ignore[arg-type]
        result = replace(value, **changed)  # type: ignore[type-var]
    return result
