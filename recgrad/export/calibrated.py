"""The calibration that belongs to a checkpoint, if it has one."""

from __future__ import annotations

import zlib

from recgrad.calibration.stored import CALIBRATION, Calibration, read_calibration
from recgrad.errors import RecgradError, system_reason
from recgrad.serving.manifest import MANIFEST
from recgrad.training.assembly import uses_ema
from recgrad.training.run import Trained

REMEDY = "run recgrad calibrate again, or ask for raw scores (--raw_scores)"


def calibration_of(trained: Trained, *, raw_scores: bool = False) -> Calibration | None:
    """The calibration that was fitted to these weights; None where there is none, or none is asked for.

    Raises:
        RecgradError: the model_dir has one of other weights, which would give wrong probabilities.
    """
    if raw_scores or trained.checkpoint is None:
        return None
    path = trained.checkpoint.parent / CALIBRATION
    if not path.is_file():
        return None
    found = read_calibration(path)
    if found.checkpoint != trained.checkpoint.name:
        raise RecgradError(
            f"{path}: was fitted to {found.checkpoint}, and this is {trained.checkpoint.name}; {REMEDY}"
        )
    if found.crc32 != checkpoint_checksum(trained):
        raise RecgradError(
            f"{path}: was fitted to another {found.checkpoint} than the one that is there now; {REMEDY}"
        )
    averaged = uses_ema(trained.config, exporting=True)
    if found.averaged != averaged:
        kinds = {True: "averaged", False: "last"}
        raise RecgradError(
            f"{path}: was fitted to the {kinds[found.averaged]} weights, and these are the {kinds[averaged]} "
            f"ones (use_dense_ema); {REMEDY}"
        )
    return found


def checkpoint_checksum(trained: Trained) -> int:
    """The checksum of a checkpoint's manifest, which has those of all of its files."""
    assert trained.checkpoint is not None
    path = trained.checkpoint / MANIFEST
    try:
        return zlib.crc32(path.read_bytes())
    except OSError as error:
        raise RecgradError(f"{path}: {system_reason(error)}") from error
