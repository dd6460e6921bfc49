"""Scores and labels of a trained model's binary tasks on rows of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recgrad.data.loader import build_loader
from recgrad.models.targets import find_targets
from recgrad.training.run import Trained
from recgrad.training.task import Head

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScoredRows:
    """Rows of one file, in their order.

    Attributes:
        scores: the predicted probability of 1, by task.
        labels: by task.
        keys: of groups, by column.
    """

    scores: Mapping[str, Floats]
    labels: Mapping[str, Floats]
    keys: Mapping[str, npt.NDArray[np.int64]]


def binary_heads(trained: Trained) -> dict[str, Head]:
    """The heads of tasks that predict one probability, by task."""
    return {
        head.spec.name: head
        for head in trained.task.each_head()
        if head.spec.num_class <= 2
        and not head.spec.retrieval
        and not head.spec.training_only
        and head.prediction_name.startswith("probs")
    }


def score_rows(
    trained: Trained, input_path: str, *, device: torch.device, most_rows: int | None = None
) -> ScoredRows:
    """Score the rows of a dataset, at most about `most_rows` of them."""
    loader = build_loader(
        trained.config,
        input_path,
        features=trained.features,
        targets=find_targets(trained.config),
        training=False,
        pin=device.type == "cuda",
    )
    task, heads = trained.task, binary_heads(trained)
    scores: dict[str, list[Floats]] = {name: [] for name in heads}
    labels: dict[str, list[Floats]] = {name: [] for name in heads}
    keys: dict[str, list[npt.NDArray[np.int64]]] = {}
    rows = 0
    with torch.inference_mode():
        for batch in loader.epoch(0):
            outputs = task(batch)
            predictions = task.predictions(outputs)
            for name, head in heads.items():
                if head.prediction_name in predictions:
                    found = predictions[head.prediction_name].double().cpu().numpy()
                    scores[name].append(_of_positive(found))
                    labels[name].append(head.labels(batch, outputs).double().numpy())
            for name, key in batch.keys.items():
                of_values = key[outputs["rows"].cpu()] if task.model.lists else key
                keys.setdefault(name, []).append(of_values.numpy())
            rows += batch.size
            if most_rows is not None and rows >= most_rows:
                break
    return ScoredRows(_joined(scores), _joined(labels), _joined(keys))


def _joined(found: Mapping[str, list[npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
    return {name: np.concatenate(parts) for name, parts in found.items() if parts}


def _of_positive(probabilities: Floats) -> Floats:
    """The probability of class 1."""
    return probabilities if probabilities.ndim == 1 else probabilities[:, 1]
