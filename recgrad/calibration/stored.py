"""A calibration as it is stored: which outputs it maps, and which weights it was fitted to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from recgrad.calibration.isotonic import Floats, Isotonic, fit_isotonic
from recgrad.calibration.platt import Platt, fit_platt
from recgrad.errors import RecgradError, system_reason

CALIBRATION = "calibration.json"
FORMAT = 1
Map: TypeAlias = Platt | Isotonic
METHODS: dict[str, Callable[[Floats, Floats], Map]] = {"platt": fit_platt, "isotonic": fit_isotonic}
"""What fits a map to scores and labels, by the method's name."""
_MAPS: dict[str, type[Platt] | type[Isotonic]] = {"platt": Platt, "isotonic": Isotonic}
Scores = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Calibration:
    """Maps of a model's outputs.

    Attributes:
        maps: by the output that they apply to.
        checkpoint: the name of the checkpoint that they were fitted to.
        step: of it.
        crc32: of its manifest, which knows the checksums of all of its files.
        averaged: whether the scores were those of averaged weights.
        data: the file that they were fitted on.
        rows: of it.
    """

    maps: Mapping[str, Map]
    checkpoint: str
    step: int
    crc32: int
    averaged: bool
    data: str
    rows: int

    def apply(self, scores: Scores) -> Scores:
        """The scores, those of calibrated outputs through their maps: [rows], or of two classes [rows, 2]."""
        return {
            name: values if name not in self.maps else _mapped(self.maps[name], values)
            for name, values in scores.items()
        }

    def to_bytes(self) -> bytes:
        """The content of calibration.json."""
        content: dict[str, Any] = {"format": FORMAT, **{f.name: getattr(self, f.name) for f in fields(self)}}
        content["maps"] = {
            name: {"method": one.name, **{k: v for k, v in asdict(one).items() if not k.startswith("_")}}
            for name, one in self.maps.items()
        }
        return json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"


def _mapped(one: Map, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    if values.ndim == 1:
        return one.apply(values)
    positive = one.apply(values[:, 1])
    return np.stack([1 - positive, positive], axis=1)


def read_calibration(path: Path) -> Calibration:
    """What is stored in a file.

    Raises:
        RecgradError: it is no such file, damaged, or of another version.
    """
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']}, and this Recgrad reads {FORMAT}")
        del content["format"]
        maps = {name: _read_map(dict(one)) for name, one in content.pop("maps").items()}
        kinds = {"checkpoint": str, "step": int, "crc32": int, "averaged": bool, "data": str, "rows": int}
        wrong = [name for name, kind in kinds.items() if type(content.get(name)) is not kind]
        if wrong:
            raise ValueError(f"'{wrong[0]}' is missing or of another type")
        return Calibration(maps=maps, **{name: content[name] for name in kinds})
    except OSError as error:
        raise RecgradError(f"{path}: {system_reason(error)}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecgradError(
            f"{path}: is not a calibration that can be read ({error}); run recgrad calibrate again"
        ) from error


def _read_map(content: dict[str, Any]) -> Map:
    kind = _MAPS[content.pop("method")]
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in content.items()}
    return kind(**values)
