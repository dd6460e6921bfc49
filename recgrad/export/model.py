"""`recgrad.load_model`: a bundle, a checkpoint or a model_dir as an object that predicts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.features.spec import FeatureSpec
from recgrad.data.given_rows import given_rows
from recgrad.data.list_column import Column
from recgrad.errors import RecgradError, whole_path
from recgrad.export.towers import is_model_bundle
from recgrad.serving.scorer import Scorer, Scores


class _Scores(Protocol):
    """What a loaded model asks of a bundle or of a checkpoint."""

    @property
    def features(self) -> tuple[FeatureSpec, ...]: ...
    @property
    def tasks(self) -> tuple[str, ...]: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...
    @property
    def schema(self) -> pa.Schema: ...
    def score(self, rows: pa.Table) -> Scores: ...
    def explain(self, rows: pa.Table) -> dict[str, dict[str, Column]]: ...
    def embed(self, rows: pa.Table, tower: str) -> npt.NDArray[np.float32]: ...
    def tower_schema(self, tower: str) -> pa.Schema: ...


class LoadedModel:
    """A model that predicts rows of any kind; threads may share it, and it is pickled by its path.

    Args:
        path: of the bundle, checkpoint or model_dir.
        scorer: what scores tables.

    Attributes:
        features: what each feature looks like to the model.
        tasks: names of the tasks; "" for a model of one.
        outputs: names of the columns that `predict` gives.
        columns: the columns that it reads.
    """

    def __init__(self, path: str, scorer: _Scores, threads: int, raw_scores: bool = False) -> None:
        self.path = path
        self.scorer = scorer
        self.features = scorer.features
        self.tasks = scorer.tasks
        self.outputs = scorer.outputs
        self.columns = tuple(scorer.schema.names)
        self._threads, self._raw = threads, raw_scores

    def predict(self, rows: Any, *, output_columns: Sequence[str] = ()) -> Any:
        """The predictions of rows, in the form in which the rows are given.

        Args:
            rows: a pandas or polars DataFrame, an Arrow table, a dict of columns or a list of dicts.
            output_columns: which predictions; all by default.

        Raises:
            DataError: rows that are of another kind, lack a column or cannot be encoded.
        """
        given = given_rows(rows, self.scorer.schema)
        scores = self.scorer.score(given.table)
        unknown = [name for name in output_columns if name not in scores]
        if unknown:
            raise RecgradError(f"output_columns: no prediction '{unknown[0]}' (has: {', '.join(scores)})")
        return given.back({name: scores[name] for name in output_columns or scores})

    def embed(self, rows: Any, tower: str) -> npt.NDArray[np.float32]:
        """Vectors of rows by one tower: [rows, dim], or of several interests [rows, interests, dim].

        Args:
            rows: as for `predict`; they need the columns of that tower alone.
            tower: "user" or "item".

        Raises:
            DataError: rows that are of another kind, lack a column or cannot be encoded.
            RecgradError: the model has no such tower.
        """
        given = given_rows(rows, self.scorer.tower_schema(tower))
        return self.scorer.embed(given.table, tower)

    def explain(self, rows: Any) -> dict[str, dict[str, Column]]:
        """What each feature adds to each prediction: {output: {feature: score − score without it}}."""
        return self.scorer.explain(given_rows(rows, self.scorer.schema).table)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(load_model, threads=self._threads, raw_scores=self._raw), (self.path,)

    def __repr__(self) -> str:
        return f"LoadedModel({self.path!r}, outputs={self.outputs})"


def load_model(path: str | Path, *, threads: int = 1, raw_scores: bool = False) -> LoadedModel:
    """The model at a path: a bundle of `recgrad export`, scored without torch, a model_dir, or a checkpoint.

    A checkpoint is found in the model_dir that it was written to, whose pipeline.config says what it is of.

    Args:
        path: of it.
        threads: that one call of a bundle computes with.
        raw_scores: leave out the calibration that `recgrad calibrate` stored with the model.
    """
    folder = Path(path).absolute()
    if is_model_bundle(folder):
        scorer = Scorer.load(folder, threads=threads, raw_scores=raw_scores)
        return LoadedModel(str(folder), scorer, threads, raw_scores)
    if not folder.exists():
        raise RecgradError(
            f"load_model: '{path}'{whole_path(path)} does not exist; name a bundle or a model_dir"
        )
    from recgrad.export.trained import TrainedScorer

    return LoadedModel(str(folder), TrainedScorer(folder, raw_scores=raw_scores), threads, raw_scores)
