"""Scores rows with a bundle: the features of training, tables from mapped files, a dense program; no torch.

    scorer = Scorer.load("bundle")
    scorer.score(table)                    # {"probs": float32 [rows]}, the columns of `recgrad predict`
    scorer.score_candidates(user, items)   # one user's row and many items' rows
    scorer.embed(table, "item")            # vectors of one tower

A scorer holds no state between calls, so any number of threads may share one; it is pickled by its path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.faults import Faults
from recgrad.data.features.spec import FeatureSpec
from recgrad.errors import DataError

Scores = dict[str, npt.NDArray[np.float32]]


class BadRowsError(DataError):
    """Rows that cannot be encoded; the text is of the first.

    Attributes:
        faults: all of them: `faults.rows` are the bad rows, `faults.firsts()` say what is wrong with them.
    """

    def __init__(self, faults: Faults) -> None:
        first = faults.first()
        assert first is not None
        super().__init__(f"row {first.row}: {first}")
        self.faults = faults


class Scorer:
    """A loaded bundle.

    Attributes:
        path: of the bundle.
        manifest: what manifest.json says: versions, model, outputs, sizes, metrics.
        features: what each feature looks like to the model.
        schema: the columns that `score` reads, with the types that they had when the bundle was written;
            other types are taken as training takes them. A table may have other columns too.
        outputs: names of the columns that `score` gives.
        tasks: names of the tasks; "" for a model of one.
        towers: names that `embed` takes; () for a model without towers.
        golden: some rows that the bundle was written with, of `schema`.
    """

    path: Path
    manifest: Mapping[str, Any]
    features: tuple[FeatureSpec, ...]
    schema: pa.Schema
    outputs: tuple[str, ...]
    tasks: tuple[str, ...]
    towers: tuple[str, ...]
    golden: pa.Table

    @classmethod
    def load(cls, path: str | Path, *, threads: int = 1, verify: bool = True) -> Scorer:
        """Open a bundle; it is refused unless it is whole and reproduces its golden rows.

        Args:
            path: the folder that `recgrad export` wrote.
            threads: that one call computes with; several calls may run at once.
            verify: compare every byte of the tables with its checksum; without it only their sizes are.

        Raises:
            BundleError: it is not a bundle, damaged, or of another version.
        """
        raise NotImplementedError

    def score(self, rows: pa.Table | pa.RecordBatch) -> Scores:
        """The predictions of rows, by the names of `outputs`: float32 [rows], or [rows, classes].

        Raises:
            BadRowsError: some rows cannot be encoded.
            DataError: a column is missing or of a type that a feature cannot read.
        """
        raise NotImplementedError

    def score_candidates(self, user: pa.Table | pa.RecordBatch, items: pa.Table | pa.RecordBatch) -> Scores:
        """The predictions of one user's row with each of the items' rows.

        Features that read columns of `user` alone are encoded, looked up and pooled once.
        Bad rows are counted as in `items`; a bad value of the user is row 0.
        """
        raise NotImplementedError

    def embed(self, rows: pa.Table | pa.RecordBatch, tower: str) -> npt.NDArray[np.float32]:
        """The vectors of one tower, [rows, dim] (or [rows, interests, dim]), from its features' columns."""
        raise NotImplementedError

    def tower_schema(self, tower: str) -> pa.Schema:
        """The columns that `embed` reads for a tower."""
        raise NotImplementedError

    def explain(self, rows: pa.Table | pa.RecordBatch) -> dict[str, dict[str, npt.NDArray[np.float32]]]:
        """How each output moves when a feature's columns are missing: {output: {feature: change [rows]}}."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        raise NotImplementedError
