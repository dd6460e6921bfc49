"""Golden rows of a bundle: some rows that are scored again at every load, and what they must score."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.calibration.stored import Calibration
from recgrad.data.arrow_columns import as_numbers
from recgrad.errors import BundleError, DataError
from recgrad.serving.manifest import GOLDEN_SCORES, SCORE
from recgrad.serving.outputs import Outputs
from recgrad.serving.part import Part

RAW = "raw:"
"""Before the name of an output: golden scores before calibration."""
_ABSOLUTE, _RELATIVE = 1e-5, 1e-4  # how far other machines may be from golden scores


def check_golden(
    folder: Path,
    golden: pa.Table,
    parts: Mapping[str, Part],
    calibration: Calibration | None,
    *,
    compare: bool,
) -> dict[str, Outputs]:
    """Score the golden rows again; returns the outputs of no rows, by program.

    Args:
        folder: the bundle.
        golden: its golden rows.
        parts: its programs.
        calibration: of the program "score", or None.
        compare: whether they must score as they did at export.

    Raises:
        BundleError: they score otherwise, or cannot be scored.
    """
    none, expected = {}, read_arrow(folder / GOLDEN_SCORES)
    for name, part in parts.items():
        try:
            outputs = part.run(golden)
        except DataError as error:
            raise BundleError(f"{folder}: cannot score its golden rows ({error})") from error
        # Calibration may be steep, so that what differs little before it differs much after: the program
        # is compared before it, and the maps by what they make of the same scores.
        maps = calibration.maps if name == SCORE and calibration is not None else {}
        for output, values in zip(part.record.outputs, outputs.arrays, strict=True):
            wanted = _golden(expected, RAW + output if output in maps else output, values.shape)
            pairs = [(values, wanted)]
            if calibration is not None and output in maps:
                mapped = calibration.apply({output: wanted})[output]
                pairs.append((mapped, _golden(expected, output, values.shape)))
            far = max(float(np.nanmax(np.abs(a - b), initial=0.0)) for a, b in pairs)
            near = [np.allclose(a, b, _RELATIVE, _ABSOLUTE, equal_nan=True) for a, b in pairs]
            if compare and not all(near):
                raise BundleError(
                    f"{folder}: '{output}' of its golden rows differs by {far:.2g} from what it was "
                    "at export; export the model again, or use the versions that manifest.json names"
                )
        none[name] = outputs.none()
    return none


def _golden(scores: pa.Table, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Scores that are stored, in the shape of an output."""
    flat = scores.column(name).combine_chunks()
    while pa.types.is_nested(flat.type):
        flat = flat.flatten()
    found: npt.NDArray[np.float32] = as_numbers(flat).reshape(shape)
    return found


def read_arrow(path: Path) -> pa.Table:
    """The rows of a file of a bundle."""
    try:
        return pa.ipc.open_file(path).read_all()
    except (OSError, pa.ArrowException) as error:
        raise BundleError(f"{path}: cannot be read ({error}); copy the bundle again") from error
