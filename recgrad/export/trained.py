"""Scores tables with a checkpoint, by the model itself."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from recgrad.config.load import CONFIG_FILE
from recgrad.data.batch import Batch
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.data.readers.build import open_reader
from recgrad.errors import RecgradError
from recgrad.export.calibrated import calibration_of
from recgrad.models.towers import TowerEncoder
from recgrad.serving.explain import explain
from recgrad.serving.scorer import CHUNK_ROWS, BadRowsError, Scores
from recgrad.training.run import Trained, load_trained
from recgrad.training.task import as_array


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
        if trained.task.model.predicts_lists:
            raise RecgradError(
                "the model predicts a list for each row, one value a candidate; write the rows to a file, "
                "and score it with recgrad predict"
            )
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
            return {name: np.empty(0, np.float32) for name in self.outputs}
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

    def _score(self, rows: pa.Table, first_row: int) -> Scores:
        faults = Faults()
        encoded = self._encoder.encode_table(rows, faults)
        if faults:
            raise BadRowsError(faults, first_row)
        with torch.inference_mode():
            found = self._task.predictions(self._task(Batch.of(encoded)))
        scores = {name: as_array(values) for name, values in found.items()}
        return scores if self._calibration is None else self._calibration.apply(scores)

    def embed(self, rows: pa.Table, tower: str) -> npt.NDArray[np.float32]:
        """The vectors of one tower."""
        return self._tower(tower).embed(rows)

    def tower_schema(self, tower: str) -> pa.Schema:
        """The columns that `embed` reads for a tower."""
        return pa.schema([self.schema.field(name) for name in self._tower(tower).columns])

    def explain(self, rows: pa.Table) -> dict[str, dict[str, npt.NDArray[np.float32]]]:
        """What each feature adds to each output."""
        return explain(self, rows, self._features)


def _schema(config: object, columns: tuple[str, ...]) -> pa.Schema:
    """The types that columns had in the data, where these are still there."""
    try:
        path = config.eval_input_path or config.train_input_path  # type: ignore[attr-defined]
        schema = open_reader(path, config.data_config).schema  # type: ignore[attr-defined]
        return pa.schema([schema.field(name) for name in columns])
    except (RecgradError, KeyError, OSError):
        return pa.schema([(name, pa.null()) for name in columns])
