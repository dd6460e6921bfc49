"""Rows of files with their predictions, whoever makes these: a bundle or a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from recgrad.errors import RecgradError, whole_path
from recgrad.export.prediction import Prediction, names_bundle
from recgrad.export.prediction_files import Target

if TYPE_CHECKING:
    from recgrad.export.predict_bundle import BundleRows
    from recgrad.export.predict_trained import TrainedRows


def open_rows(asked: Prediction) -> BundleRows | TrainedRows:
    """The rows of files with predictions, by a bundle or a checkpoint."""
    if names_bundle(asked.source):
        from recgrad.export.predict_bundle import BundleRows

        return BundleRows(asked)
    from recgrad.export.predict_trained import TrainedRows

    return TrainedRows(asked)


def check_not_input(target: Target, paths: Sequence[str]) -> None:
    """Raise if the output would replace a file that is read."""
    if target.path.is_file() and any(target.path.samefile(path) for path in paths):
        raise RecgradError(
            f"predict: output '{target.path}'{whole_path(target.path)} is one of the files to predict for; "
            "choose another"
        )
