"""What a delta says of itself, and how its files are called."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from recgrad.errors import RecgradError, system_reason

FORMAT = 1
_CHECKSUM = "checksum"


class DeltaError(RecgradError):
    """A delta that cannot be applied."""


@dataclass(frozen=True)
class TableDelta:
    """The rows of one table.

    Attributes:
        name: of the table.
        dim: of a row.
        rows: that have changed.
        gone: keys that have no row any more, or whose row is untrained again.
        stand_ins: rows that ids without one read; 0 where they did not change.
    """

    name: str
    dim: int
    rows: int
    gone: int
    stand_ins: int


@dataclass(frozen=True)
class DeltaRecord:
    """A delta.

    Attributes:
        stream: of which run, at random.
        number: from 1.
        parent: `id` of the delta before; "" of the first.
        step: of the run.
        previous_step: of the delta before.
        created: Unix time at which its rows were taken.
        quant: "NONE", or "INT8".
        tables: with changes, in the order of the file.
        files: size and CRC-32 of each, by name: rows and dense weights.
        id: of this delta.
    """

    stream: str
    number: int
    parent: str
    step: int
    previous_step: int
    created: float
    quant: str
    tables: tuple[TableDelta, ...] = ()
    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    id: str = ""

    def to_bytes(self) -> bytes:
        """JSON, with a checksum of the rest."""
        content = {"format": FORMAT, **asdict(self)}
        return json.dumps({**content, _CHECKSUM: _checksum(content)}, indent=1).encode() + b"\n"


def stem(prefix: str, number: int, step: int) -> str:
    """What the files of a delta begin with."""
    return f"{prefix}_{number:08d}_step_{step}"


_NAME = re.compile(r"_(\d{8,})_step_\d+\.json$")


def published(folder: Path) -> dict[int, Path]:
    """The manifests in a folder by number.

    Raises:
        DeltaError: the folder cannot be read.
    """
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DeltaError(f"{folder}: deltas cannot be read ({system_reason(error)})") from error
    found = ((_NAME.search(name), name) for name in names if not name.startswith("."))
    return {int(match.group(1)): folder / name for match, name in found if match}


def read_record(path: Path) -> DeltaRecord:
    """What a manifest says.

    Raises:
        DeltaError: it is damaged, or of another format.
    """
    try:
        content = json.loads(path.read_bytes())
        checksum = content.pop(_CHECKSUM)
        if checksum != _checksum(content):
            raise ValueError("its checksum is wrong")
        form = content.pop("format")
        if form != FORMAT:
            raise DeltaError(f"{path}: is of format {form}, this Recgrad reads {FORMAT}; use one version")
        content["tables"] = tuple(TableDelta(**table) for table in content["tables"])
        content["files"] = {_file_name(name): (int(s), int(c)) for name, (s, c) in content["files"].items()}
        return DeltaRecord(**content)
    except OSError as error:
        raise DeltaError(f"{path}: cannot be read ({system_reason(error)})") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DeltaError(f"{path}: is damaged ({error}); copy it again, or export a bundle") from error


def _file_name(name: str) -> str:
    if "/" in name or name.startswith("."):
        raise ValueError(f"it names a file '{name}'")
    return name


def _checksum(content: Any) -> int:
    return zlib.crc32(json.dumps(content, separators=(",", ":"), sort_keys=True).encode())
