"""The towers of a trained model, one at a time: vectors of rows that have that tower's columns alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from recgrad.data.batch import Batch
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.data.features.base import Feature
from recgrad.errors import DataError, RecgradError
from recgrad.models.base import Model
from recgrad.retrieval.tower_names import tower_hint

ROWS = 4096  # of one pass


class TowerEncoder:
    """One tower of a model, from columns to vectors.

    Args:
        model: with towers.
        features: all features of its config.
        tower: such as "user" or "item".

    Attributes:
        columns: what it reads.
    """

    def __init__(self, model: Model, features: Sequence[Feature], tower: str) -> None:
        groups = model.tower_groups
        if tower not in groups:
            if not groups:
                kind = type(model).__name__
                raise RecgradError(
                    f"tower '{tower}': {kind} has no towers; take a model of two, such as dssm"
                )
            known = ", ".join(groups)
            raise RecgradError(f"no tower '{tower}' (has: {known}){tower_hint(tower, groups)}")
        names = model.tower_features(tower)
        self.model, self.tower = model, tower
        self._encoder = FeatureEncoder([feature for feature in features if feature.name in names])
        self.columns = self._encoder.columns

    def encode(self, table: pa.Table, first_row: int = 0, where: str = "") -> Batch:
        """A batch of rows with this tower's features; from which row on and where they are, for errors."""
        faults = Faults()
        encoded = self._encoder.encode_table(table, faults)
        if (fault := faults.first()) is not None:
            raise DataError(
                f"feature {fault.feature}: {fault.problem} (column '{fault.column}', row "
                f"{first_row + fault.row}{where and f' of {where}'}); {fault.remedy}"
            )
        return Batch.of(encoded).with_inputs_on(self.model.groups.device)

    @torch.inference_mode()
    def vectors(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Vectors of a batch, [rows, dim] or [rows, interests, dim]; the model must be in eval mode."""
        array: npt.NDArray[np.float32] = self.model.embed(batch, self.tower).float().cpu().numpy()
        return array

    def embed(self, table: pa.Table, first_row: int = 0, where: str = "") -> npt.NDArray[np.float32]:
        """Vectors of rows, a pass of some thousand at a time."""
        starts = range(0, max(table.num_rows, 1), ROWS)
        batches = (self.encode(table.slice(i, ROWS), first_row + i, where) for i in starts)
        return np.concatenate([self.vectors(batch) for batch in batches])
