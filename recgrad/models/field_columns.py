"""Which ids of a batch the columns of an engine's output were looked up by."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.data.batch import KeyedJagged
from recgrad.embedding.engine import EmbeddingEngine
from recgrad.nn.field_ids import FieldIds, note_field_ids

Array = npt.NDArray[np.int64]


class Field(NamedTuple):
    """A lookup that is pooled: the key of its ids, and its width."""

    key: str
    width: int


class FieldColumns:
    """Tells of the outputs of an engine for one batch which ids they were looked up by.

    Args:
        engine: whose outputs they are.
        fields: its pooled lookups, by name.
        ids: of the batch.
    """

    def __init__(self, engine: EmbeddingEngine, fields: Mapping[str, Field], ids: KeyedJagged) -> None:
        self.engine = engine
        self.fields = fields
        self.ids = ids

    def note(self, output: Tensor, names: tuple[str, ...]) -> Tensor:
        """The output of these lookups, with their ids noted on it where layers may make use of them.

        That is while training, of columns that are functions of their ids alone, of which only the sums of
        gradients by id matter to the engine.
        """
        trains = self.engine.training and torch.is_grad_enabled() and output.requires_grad
        if not trains or output.device.type != "cpu" or self.ids.weights is not None:
            return output
        fields = [self.fields[name] for name in names]
        widths = np.array([field.width for field in fields], np.int64)
        columns = np.cumsum(widths) - widths
        free = [self.engine.sums_gradients(name) for name in names]
        there = [field.key in self.ids.keys for field in fields]
        chosen = np.flatnonzero(np.logical_and(free, there))
        if not len(chosen):
            return output
        places = _places(self.ids.keys, tuple(fields[i].key for i in chosen))
        found = self._find(columns[chosen], widths[chosen], places, output.shape[0])
        return output if found is None else note_field_ids(output, found)

    def _find(self, columns: Array, widths: Array, places: Array, rows: int) -> FieldIds | None:
        ids = self.ids
        if any(count != rows for count in ids.bag_counts):
            return None
        values, lengths = ids.values.contiguous(), ids.lengths.to(torch.int32).contiguous()
        first, counted = rows * places, np.zeros(len(places), np.int64)
        if not ids.single:
            sizes = lengths.view(len(ids.keys), rows).sum(1, dtype=torch.int64).numpy()
            first = (np.cumsum(sizes) - sizes)[places]
            counted = lengths.data_ptr() + 4 * rows * places
        return FieldIds(columns, widths, values.data_ptr() + 8 * first, counted, (values, lengths), [])


@lru_cache(maxsize=256)
def _places(keys: tuple[str, ...], names: tuple[str, ...]) -> Array:
    """Where some keys are among all."""
    number = {key: i for i, key in enumerate(keys)}
    return np.array([number[name] for name in names], np.int64)
