"""Scores tables with a checkpoint, by the model itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from recgrad.calibration.stored import Calibration
from recgrad.config.load import CONFIG_FILE
from recgrad.data.batch import Batch
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.data.list_column import Column, in_lists, join_columns
from recgrad.data.readers.build import open_reader
from recgrad.errors import RecgradError
from recgrad.export.calibrated import calibration_of
from recgrad.models.towers import TowerEncoder
from recgrad.serving.explain import explain
from recgrad.serving.part import BadRowsError
from recgrad.serving.scorer import CHUNK_ROWS, Scores
from recgrad.training.run import Trained, load_trained
from recgrad.training.task import Task, as_array


class TrainedScorer:
    """A checkpoint that scores as a bundle does, on the CPU; see `recgrad.serving.scorer.Scorer`."""

    def __init__(self, folder: Path, *, raw_scores: bool = False) -> None:
        home = next((f for f in (folder, folder.parent) if (f / CONFIG_FILE).is_file()), None)
        if home is None:
            raise RecgradError(
                f"load_model: '{folder}' is neither a bundle nor a model_dir: it has no {CONFIG_FILE}"
            )
        checkpoint = None if folder == home else folder
        trained = load_trained(str(home), checkpoint, exporting=True, device=torch.device("cpu"))
        self._set(trained, raw_scores)

    @classmethod
    def of(cls, trained: Trained, *, raw_scores: bool = False) -> TrainedScorer:
        """The scorer of a model that is loaded."""
        scorer = cls.__new__(cls)
        scorer._set(trained, raw_scores)
        return scorer

    def _set(self, trained: Trained, raw_scores: bool) -> None:
        self._task, self._features = trained.task, trained.features
        self._calibration = calibration_of(trained, raw_scores=raw_scores)
        self._encoder = FeatureEncoder(trained.features)
        self.features = tuple(feature.spec for feature in trained.features)
        self.tasks = tuple(spec.name for spec in trained.task.model.tasks)
        self.outputs = tuple(
            head.prediction_name for head in trained.task.each_head() if not head.spec.training_only
        )
        self.schema = _schema(trained.config, self._encoder.columns)
        self._tower = cache(partial(TowerEncoder, trained.task.model, trained.features))

    def score(self, rows: pa.Table) -> Scores:
        """The predictions of rows."""
        pieces = [self._score(rows.slice(at, CHUNK_ROWS), at) for at in range(0, rows.num_rows, CHUNK_ROWS)]
        if not pieces:
            none = np.empty(0, np.int64) if self._task.model.predicts_lists else None
            return {name: in_lists(np.empty(0, np.float32), none) for name in self.outputs}
        return {name: join_columns([piece[name] for piece in pieces]) for name in pieces[0]}

    def _score(self, rows: pa.Table, first_row: int) -> Scores:
        faults = Faults()
        encoded = self._encoder.encode_table(rows, faults)
        if faults:
            raise BadRowsError(faults, first_row)
        with torch.inference_mode():
            given = self._task(Batch.of(encoded))
        return predicted(self._task, given, self._calibration)

    def embed(self, rows: pa.Table, tower: str) -> npt.NDArray[np.float32]:
        """The vectors of one tower."""
        return self._tower(tower).embed(rows)

    def tower_schema(self, tower: str) -> pa.Schema:
        """The columns that `embed` reads for a tower."""
        return pa.schema([self.schema.field(name) for name in self._tower(tower).columns])

    def explain(self, rows: pa.Table) -> dict[str, dict[str, Column]]:
        """What each feature adds to each output."""
        return explain(self, rows, self._features)


def predicted(
    task: Task, outputs: Mapping[str, torch.Tensor], calibration: Calibration | None
) -> dict[str, Column]:
    """The predictions of a batch from a model's outputs, calibrated; lists of a model that scores lists."""
    scores = {name: as_array(values) for name, values in task.predictions(outputs).items()}
    if calibration is not None:
        scores = calibration.apply(scores)
    lengths = as_array(outputs["lengths"]) if task.model.predicts_lists else None
    return {name: in_lists(values, lengths) for name, values in scores.items()}


def _schema(config: object, columns: tuple[str, ...]) -> pa.Schema:
    """The types that columns had in the data, where these are still there."""
    try:
        path = config.eval_input_path or config.train_input_path  # type: ignore[attr-defined]
        schema = open_reader(path, config.data_config).schema  # type: ignore[attr-defined]
        return pa.schema([schema.field(name) for name in columns])
    except (RecgradError, KeyError, OSError):
        return pa.schema([(name, pa.null()) for name in columns])
