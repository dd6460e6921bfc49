"""What a prediction is asked for, whoever makes it: a bundle or a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recgrad.config.json_source import load_json
from recgrad.config.load import CONFIG_FILE
from recgrad.errors import RecgradError
from recgrad.export.towers import is_model_bundle
from recgrad.serving.manifest import MANIFEST

if TYPE_CHECKING:
    import torch

ALL, ALL_READ = "ALL_COLUMNS", "ALL_EFFECTIVE_COLUMNS"
"""Names that stand for all columns of the input, and for those that the model reads."""


@dataclass(frozen=True)
class Prediction:
    """What is asked for.

    Attributes:
        source: a config, model_dir or bundle.
        checkpoint_path: of another checkpoint than the one that the config means.
        input_path: files of rows.
        carry_columns: columns of the input to carry along.
        output_columns: which predictions; () for all.
        batch_size: rows that are scored together; None for the config's.
        predict_steps: batches to stop after; None for all.
        num_threads: to compute with; None for the usual number.
        dataset_type: of the input, where it is another than the config's.
        edits: changes to the config.
        device: where the model computes.
        custom_code: whether the config may name classes to import.
        raw_scores: leave out the model's calibration, if it has one.
        rank: which part of the rows,
        world_size: of how many.
        trace_dir: takes a trace of some batches; None for none.
        debug_level: 1 writes encoded features beside predictions.
    """

    source: Any
    input_path: str = ""
    checkpoint_path: str | Path | None = None
    carry_columns: tuple[str, ...] = ()
    output_columns: tuple[str, ...] = ()
    batch_size: int | None = None
    predict_steps: int | None = None
    num_threads: int | None = None
    dataset_type: str = ""
    edits: str | Mapping[str, Any] | None = None
    device: str | torch.device = "auto"
    custom_code: bool = True
    raw_scores: bool = False
    rank: int = 0
    world_size: int = 1
    trace_dir: Path | None = None
    debug_level: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "predict_steps", "num_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RecgradError(f"predict: {name} must be at least 1, got {value}")
        if self.debug_level not in (0, 1):
            raise RecgradError(
                f"predict: debug_level must be 0, or 1 for encoded features as text, got {self.debug_level}"
            )
        if self.predict_steps is not None and self.world_size > 1:
            raise RecgradError("predict: predict_steps goes with one process; leave out it or nproc")
        if self.trace_dir is not None and self.world_size > 1:
            raise RecgradError("predict: is_profiling goes with one process; leave out it or nproc")

    def all_edits(self) -> dict[str, Any]:
        """The changes to the config, with those that other arguments mean; rows stay in their order."""
        edits = load_json(self.edits, "edits") if isinstance(self.edits, str) else dict(self.edits or {})
        if not isinstance(edits, dict):
            raise RecgradError("edits: expected a JSON object of paths and values")
        edits["data_config.in_order"] = True
        if self.batch_size is not None:
            edits["data_config.eval_batch_size"] = self.batch_size
        if self.dataset_type:
            edits["data_config.dataset_type"] = self.dataset_type
        return edits

    def check_no_edits(self) -> None:
        """Raise where changes to the config are asked for that would do nothing."""
        if self.edits:
            raise RecgradError(
                "predict: a bundle's config is not read for rows in memory; leave out the edits"
            )


def model_source(source: Any, checkpoint_path: str | Path | None) -> tuple[Any, str | Path | None]:
    """The config or bundle that `source` means, and the checkpoint: a checkpoint stands in its model_dir."""
    if isinstance(source, (str, Path)) and (Path(source) / MANIFEST).is_file():
        folder = Path(source)
        if not (folder / CONFIG_FILE).is_file() and (folder.parent / CONFIG_FILE).is_file():
            if checkpoint_path is not None:
                raise RecgradError(
                    f"predict: '{source}' is a checkpoint, and so is --checkpoint_path {checkpoint_path}; "
                    "name one"
                )
            return str(folder.parent), folder
    return source, checkpoint_path


def names_bundle(source: Any) -> bool:
    """Whether `source` is the path of a bundle."""
    return isinstance(source, (str, Path)) and is_model_bundle(source)


def carried(names: Sequence[str], columns: Sequence[str], read: Sequence[str]) -> tuple[str, ...]:
    """The columns to carry along, where some names stand for many."""
    found: list[str] = []
    for name in names:
        found += columns if name == ALL else read if name == ALL_READ else [name]
    return tuple(dict.fromkeys(found))
