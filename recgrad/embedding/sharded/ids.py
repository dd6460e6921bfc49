"""Ids of a batch: checked, laid out as TorchRec takes them, and sent to the ranks that hold their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recgrad.embedding.engine import IdsLike
from recgrad.errors import DataError


def ids_per_key(ids: IdsLike) -> Tensor:
    """int64 [keys]: the number of ids of each key."""
    bags = torch.tensor([0, *ids.bag_counts]).cumsum(0)
    if ids.single:
        return bags.diff()
    ends = torch.zeros(len(ids.lengths) + 1, dtype=torch.int64)
    torch.cumsum(ids.lengths, 0, out=ends[1:])
    return ends[bags].diff()


def check_ids(
    values: Tensor, counts: Tensor, keys: Sequence[str], num_rows: Sequence[int], tables: Sequence[str]
) -> None:
    """Raise a DataError for an id outside its table: shards could not tell it from a good one.

    Args:
        values: ids, key after key.
        counts: the number of ids of each key.
        keys: features.
        num_rows: the size of each key's table (of the smallest, when it has several).
        tables: its name.
    """
    if not len(values):
        return
    filled = np.flatnonzero(counts.numpy())
    starts = (counts.cumsum(0) - counts).numpy()[filled]
    array = values.numpy()
    low, high = np.minimum.reduceat(array, starts), np.maximum.reduceat(array, starts)
    limits = np.asarray(num_rows)[filled]
    bad = np.flatnonzero((low < 0) | (high >= limits))
    if len(bad):
        key = int(filled[bad[0]])
        value = low[bad[0]] if low[bad[0]] < 0 else high[bad[0]]
        raise DataError(
            f"feature '{keys[key]}': id {value} is outside table '{tables[key]}' of {num_rows[key]} rows"
        )


def bag_jagged(
    ids: IdsLike, keys: Sequence[str], chosen: Sequence[int] | None, mean: Tensor | None, bags: int
) -> KeyedJaggedTensor:
    """The ids of row features for TorchRec, `bags` bags of each: those beyond the batch are empty.

    Args:
        ids: what a batch carries, a bag for each row.
        keys: names for TorchRec, one for each of `chosen`.
        chosen: which features, in which order; None for all as they are.
        mean: bool, one for each of `keys`: its ids get weights that make a sum of a bag its mean;
            None for ids without weights.
        bags: at least the rows of the batch.
    """
    rows = ids.bag_counts[0] if ids.bag_counts else 0
    lengths = ids.lengths
    if bags > rows:
        wide = lengths.new_zeros(len(ids.bag_counts), bags)
        wide[:, :rows] = lengths.view(len(ids.bag_counts), rows)
        lengths = wide.view(-1)
    names = list(keys) if chosen is None else [str(i) for i in range(len(ids.bag_counts))]
    jagged = KeyedJaggedTensor(names, ids.values, ids.weights, lengths, stride=bags)
    jagged = jagged if chosen is None else jagged.permute(list(chosen))
    weights = None if mean is None else _weights(jagged, mean, bags)
    return KeyedJaggedTensor(list(keys), jagged.values(), weights, jagged.lengths(), stride=bags)


def _weights(jagged: KeyedJaggedTensor, mean: Tensor, bags: int) -> Tensor:
    """A weight for each id: its own, over the number of ids of its bag where the mean is wanted."""
    lengths = jagged.lengths()
    shares = torch.where(mean.repeat_interleave(bags), 1 / lengths.clamp(min=1), 1.0)
    weights = shares.repeat_interleave(lengths.to(torch.int64))
    own = jagged.weights_or_none()
    return weights if own is None else weights * own


def row_jagged(
    values: Tensor, counts: Tensor, keys: Sequence[str], chosen: Sequence[int] | None
) -> KeyedJaggedTensor:
    """Ids that are wanted one by one, for TorchRec: one bag a feature, whatever the rows."""
    lengths = counts.to(torch.int32)
    names = list(keys) if chosen is None else [str(i) for i in range(len(counts))]
    jagged = KeyedJaggedTensor(names, values, None, lengths, stride=1)
    jagged = jagged if chosen is None else jagged.permute(list(chosen))
    return KeyedJaggedTensor(list(keys), jagged.values(), None, jagged.lengths(), stride=1)


def on_device(jagged: KeyedJaggedTensor, device: torch.device) -> KeyedJaggedTensor:
    """The same ids there; TorchRec copies its bookkeeping even where they are there already."""
    return jagged if jagged.device() == device else jagged.to(device)


class Exchange:
    """The ids of one of TorchRec's collections, sent in the background.

    The ranks first tell each other how many ids come, then send them.

    Args:
        module: the sharded collection.
        jagged: this rank's ids for it.
    """

    def __init__(self, module: Any, jagged: KeyedJaggedTensor) -> None:
        self._module = module
        self._context = module.create_context()
        self._counts = module.input_dist(self._context, jagged)
        self._ids: Any = None

    def send(self) -> None:
        """Wait for the counts of all ranks, and begin to send the ids."""
        self._ids = self._counts.wait()

    def arrive(self) -> Any:
        """Wait for the ids of all ranks that are for this one."""
        return self._ids.wait()

    def look_up(self) -> Any:
        """The ids that arrive, looked up: what TorchRec's module gives."""
        return self._module.compute_and_output_dist(self._context, self.arrive())
