"""JSON as checkpoints use it: strict, bounded, and never anything but data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from recgrad.errors import CheckpointError


def dump_json(value: Any, *, indent: int | None = None) -> bytes:
    """ASCII JSON without NaN or infinity."""
    separators = (",", ": ") if indent else (",", ":")
    return json.dumps(value, allow_nan=False, indent=indent, separators=separators).encode("ascii")


def parse_json(text: bytes, where: str) -> Any:
    """The value of a JSON text; whatever is wrong with it is a CheckpointError."""
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: is not valid JSON ({error})") from error


def require(holds: bool, path: Path | str, problem: str) -> None:
    """Raise a CheckpointError that names the file unless `holds`."""
    if not holds:
        raise CheckpointError(f"{path}: {problem}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
