"""`recgrad calibrate`: maps from a checkpoint's probabilities to observed rates, stored with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recgrad.calibration.folds import calibrated_elsewhere, enough_rows
from recgrad.calibration.measures import expected_calibration_error, log_loss
from recgrad.calibration.stored import CALIBRATION, METHODS, Calibration, Map
from recgrad.errors import DataError, RecgradError
from recgrad.export.calibrated import checkpoint_checksum
from recgrad.export.prediction import model_source, names_bundle
from recgrad.metrics.pairs import Floats, exact_auc
from recgrad.training.assembly import uses_ema
from recgrad.training.checkpoint.staging import write_file_atomically
from recgrad.training.processes import choose_device
from recgrad.training.run import Trained, load_trained
from recgrad.training.runtime import computing
from recgrad.training.scored import binary_heads, score_rows


@dataclass(frozen=True)
class Measures:
    """What probabilities are worth: expected calibration error (20 bins), log loss, exact AUC."""

    ece: float
    log_loss: float
    auc: float


@dataclass(frozen=True)
class CalibratedTask:
    """One task before and after.

    Attributes:
        before: of the raw scores.
        after: of calibrated ones, each by a map fitted on the other four fifths of the rows; the AUC of
            the map that is stored.
        unseen: False where the rows were too few for that: `after` is of the rows fitted on then.
        raw: scores.
        calibrated: those that `after` measures.
        labels: of the rows.
    """

    before: Measures
    after: Measures
    unseen: bool
    raw: Floats
    calibrated: Floats
    labels: Floats


@dataclass(frozen=True)
class CalibrationReport:
    """What was fitted.

    Attributes:
        path: of the calibration.
        calibration: as it is stored.
        tasks: by output.
        left_out: outputs that are no probability of two classes.
    """

    path: Path
    calibration: Calibration
    tasks: Mapping[str, CalibratedTask]
    left_out: tuple[str, ...]


@computing()
def calibrate(
    model: Any,
    data: str,
    *,
    method: str = "platt",
    checkpoint_path: str | Path | None = None,
    edit_config_json: str | Mapping[str, Any] | None = None,
    device: str | torch.device = "auto",
    custom_code: bool = True,
) -> CalibrationReport:
    """Fit a calibration to a checkpoint on rows with labels, and store it beside the checkpoint.

    Args:
        model: a model_dir, a checkpoint in it, or a config.
        data: rows that the model was not trained on.
        method: "platt" or "isotonic".
        checkpoint_path: the checkpoint; by default as `predict` chooses it.
        edit_config_json: changes to the config.
        device: where the model computes.
        custom_code: as for `train`.

    Raises:
        RecgradError: there is nothing to calibrate, or the rows cannot be used for it.
    """
    if method not in METHODS:
        raise RecgradError(f"calibrate: --method must be one of {', '.join(METHODS)}, got {method}")
    if names_bundle(model):
        raise RecgradError(
            f"calibrate: '{model}' is a bundle, which is finished; calibrate the model_dir, then export it"
        )
    source, checkpoint = model_source(model, checkpoint_path)
    chosen = choose_device(device)
    trained = load_trained(
        source,
        checkpoint,
        edit_config_json=edit_config_json,
        exporting=True,
        device=chosen,
        custom_code=custom_code,
    )
    heads = binary_heads(trained)
    if not heads:
        raise RecgradError("calibrate: the model has no task with labels 0 and 1, so it has no probabilities")
    rows = score_rows(trained, data, device=chosen)
    names = {name: head.prediction_name for name, head in heads.items()}
    maps, tasks = {}, {}
    for name, output in names.items():
        scores = rows.scores.get(name, np.empty(0))
        maps[output], tasks[output] = _fit(output, method, scores, rows.labels.get(name, scores))
    stored = _stored(trained, maps, data, len(next(iter(tasks.values())).labels))
    path = trained.checkpoint.parent / CALIBRATION  # type: ignore[union-attr]
    write_file_atomically(path, stored.to_bytes())
    every = (h.prediction_name for h in trained.task.each_head() if not h.spec.training_only)
    return CalibrationReport(path, stored, tasks, tuple(n for n in every if n not in maps))


def _fit(output: str, method: str, scores: Floats, labels: Floats) -> tuple[Map, CalibratedTask]:
    if not len(labels):
        raise DataError(f"calibrate: {output}: the data have no rows")
    if not ((labels >= 0) & (labels <= 1)).all():
        raise DataError(
            f"calibrate: {output}: labels must be in [0, 1], got {labels.min()} to {labels.max()}"
        )
    if labels.min() == labels.max():
        raise DataError(
            f"calibrate: {output}: all {len(labels):,} labels are {labels[0]:g}; take rows of both classes"
        )
    fit = METHODS[method]
    try:
        one = fit(scores, labels)
        own = one.apply(scores.astype(np.float32)).astype(np.float64)
        unseen = enough_rows(labels)
        after = calibrated_elsewhere(fit, scores, labels) if unseen else own
    except DataError as error:
        raise DataError(f"calibrate: {output}: {error}") from None
    measured = Measures(*_errors(after, labels), exact_auc(own, labels > 0.5))
    before = Measures(*_errors(scores, labels), exact_auc(scores, labels > 0.5))
    return one, CalibratedTask(before, measured, unseen, scores, after, labels)


def _errors(scores: Floats, labels: Floats) -> tuple[float, float]:
    return expected_calibration_error(scores, labels), log_loss(scores, labels)


def _stored(trained: Trained, maps: Mapping[str, Map], data: str, rows: int) -> Calibration:
    assert trained.checkpoint is not None
    return Calibration(
        maps=maps,
        checkpoint=trained.checkpoint.name,
        step=trained.step,
        crc32=checkpoint_checksum(trained),
        averaged=uses_ema(trained.config, exporting=True),
        data=data,
        rows=rows,
    )
