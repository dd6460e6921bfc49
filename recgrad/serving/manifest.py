"""What a bundle says of itself: manifest.json.

    bundle/
      manifest.json          this
      pipeline.config        the config; its features read files of the bundle
      files/                 vocabularies and other files of features, and assets that were asked for
      tables/000.rows …      trained rows (and .index, from row to slot), mapped as they are
      score.onnx             the dense program; of two-tower models also user.onnx and item.onnx
      score.folded.onnx      the same for less where rows are plain, with score.fold0.npy …; see FoldRecord
      golden.arrow           some rows; golden_scores.arrow has what they score

All that the programs take is said in `inputs`, so that a bundle can be scored from other languages too.
"""

from __future__ import annotations

import json
import types
import typing
import zlib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from recgrad.embedding.mapped.record import LookupRecord, TableRecord
from recgrad.errors import BundleError, system_reason, whole_path

MANIFEST = "manifest.json"
CONFIG = "pipeline.config"
GOLDEN = "golden.arrow"
GOLDEN_SCORES = "golden_scores.arrow"
FILES = "files"
TABLES = "tables"
SCORE = "score"
"""The program that gives predictions; others are towers."""
FORMAT = 1
"""Of the bundle: raised when an older Recgrad could not read it rightly."""
_CHECKSUM = "checksum"
_LARGEST = 256 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class InputRecord:
    """One input of a program.

    Attributes:
        name: in the program.
        source: "dense": `features` side by side, float32 [rows, width]; "lookups": `lookups` side by side,
            float32 [rows, width]; "positions": `lookups`, then `features`, of each position of each row,
            float32 [positions, width]; "lengths": of the sequences of the first feature, int32 [rows];
            "places": 0, 1, … up to the longest sequence of the batch (at least one), int64; "times": a
            feature of one number a row or position, float64 [rows] or [positions].
        features: names of features.
        lookups: names of lookups.
        width: of a row.
    """

    name: str
    source: str
    features: tuple[str, ...] = ()
    lookups: tuple[str, ...] = ()
    width: int = 0


@dataclass(frozen=True)
class WeightRecord:
    """Where the bytes of a weight lie in the file of a program, as a delta replaces them."""

    name: str
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class FoldRecord:
    """An input of the folded form of a program: what a first layer makes of the ids of small tables.

    Attributes:
        name: of the input, float32 [rows, units]: the bias, and the sum of each lookup's vector times its
            weights.
        units: of the layer.
        lookups: of small tables, whose features have an id a row.
        file: in the bundle, float32 [1 + sum of the lookups' widths, units] (.npy): the bias, then weights.
    """

    name: str
    units: int
    lookups: tuple[str, ...]
    file: str


@dataclass(frozen=True)
class ProgramRecord:
    """A dense program.

    Attributes:
        file: in the bundle.
        kind: "onnx", or "torch_export" where ONNX could not express the model.
        opset: of ONNX; 0 for other kinds.
        features: that it needs, by name.
        inputs: what it takes.
        outputs: what it gives, in order.
        note: why it is of another kind than ONNX.
        weights: its dense weights, where deltas of the run can replace them.
        lists: the feature whose every position has an output, so that outputs of a row are a list; "" where
            a row has one.
        equal_lengths: features of which a row must have equally many values.
        folded_file: its folded form, which takes `folds` beside `inputs` and computes less; "" for none.
        folds: inputs of the folded form.
    """

    file: str
    kind: str
    opset: int
    features: tuple[str, ...]
    inputs: tuple[InputRecord, ...]
    outputs: tuple[str, ...]
    note: str = ""
    weights: tuple[WeightRecord, ...] = ()
    lists: str = ""
    equal_lengths: tuple[tuple[str, ...], ...] = ()
    folded_file: str = ""
    folds: tuple[FoldRecord, ...] = ()


@dataclass(frozen=True)
class TaskRecord:
    """What a model predicts: its name ("" for one task), label, and the column of its score."""

    name: str
    label: str
    output: str


@dataclass(frozen=True)
class FileRecord:
    """Size and checksum of a file."""

    num_bytes: int
    crc32: int


@dataclass(frozen=True)
class Manifest:
    """All of it.

    Attributes:
        format: of the bundle.
        version: of Recgrad.
        versions: of other packages, at export.
        created: when, UTC.
        model: its config name.
        step: of the checkpoint.
        precision: of the tables, as asked for.
        metrics: of the last evaluation that the checkpoint knows.
        tasks: what is predicted.
        programs: "score", and of two-tower models "user" and "item".
        tables: in files.
        lookups: uses of tables.
        golden_difference: largest difference of golden scores from those of the checkpoint.
        files: every other file of the bundle.
        stream: of the deltas of its run; "" for a run that writes none.
        delta: number of the last delta that the checkpoint includes, and `delta_id` its id.
    """

    format: int
    version: str
    versions: Mapping[str, str]
    created: str
    model: str
    step: int
    precision: str
    metrics: Mapping[str, float]
    tasks: tuple[TaskRecord, ...]
    programs: Mapping[str, ProgramRecord]
    tables: tuple[TableRecord, ...]
    lookups: tuple[LookupRecord, ...]
    golden_difference: float
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    stream: str = ""
    delta: int = 0
    delta_id: str = ""

    def to_bytes(self) -> bytes:
        """JSON, with a checksum of the rest at the end."""
        content = _plain(self)
        return _dump({**content, _CHECKSUM: _checksum(content)})


def is_bundle(path: str | Path) -> bool:
    """Whether a path is a folder that says it is a bundle."""
    return (Path(path) / MANIFEST).is_file()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle.

    Raises:
        BundleError: it is missing, damaged or of another format.
    """
    path = folder / MANIFEST
    try:
        if not folder.is_dir():
            raise BundleError(
                f"{folder}{whole_path(folder)}: is not a folder; name a bundle of `recgrad export`"
            )
        if not path.is_file():
            raise BundleError(f"{folder}{whole_path(folder)}: has no {MANIFEST}, so it is not a bundle")
        if path.stat().st_size > _LARGEST:
            raise BundleError(f"{path}: is too large to be a manifest; copy the bundle again")
        text = path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path}: {system_reason(error)}") from error
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path}: is damaged ({error}); copy the bundle again") from error
    form = content.get("format")
    if isinstance(form, int) and form != FORMAT:
        raise BundleError(
            f"{folder}: is a bundle of format {form}, and this Recgrad reads format {FORMAT}; export the "
            f"model again, or use the Recgrad that wrote it ({content.get('version')})"
        )
    if content.pop(_CHECKSUM, None) != _checksum(content):
        raise BundleError(f"{path}: is damaged (its checksum is wrong); copy the bundle again")
    try:
        manifest: Manifest = _read(Manifest, content, "")
        return manifest
    except (TypeError, ValueError, KeyError) as error:
        raise BundleError(f"{path}: {error}; export the model again") from error


def _plain(value: Any) -> Any:
    """Records and mappings, also read-only ones, as dicts, tuples as lists: what JSON has."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _dump(content: Any) -> bytes:
    return json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"


def _checksum(content: Any) -> int:
    compact = json.dumps(content, separators=(",", ":"), sort_keys=True)
    return zlib.crc32(compact.encode())


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _read(kind: Any, value: Any, where: str) -> Any:
    """A value of JSON as the type that a dataclass says."""
    if is_dataclass(kind):
        names = {item.name for item in fields(kind)}
        needed = {item.name for item in fields(kind) if item.default is MISSING}
        if not isinstance(value, dict) or not needed <= set(value) <= names:
            raise ValueError(f"{where or 'the manifest'} does not have the fields of {kind.__name__}")  # type: ignore[union-attr]
        record: Any = kind
        hints = _hints(record)
        return record(**{name: _read(hints[name], item, f"{where}.{name}") for name, item in value.items()})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and isinstance(value, list):
        return tuple(_read(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, dict):
        return types.MappingProxyType({k: _read(arguments[1], v, f"{where}.{k}") for k, v in value.items()})
    if kind is float and type(value) in (int, float):
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{where} is {type(value).__name__} instead of {getattr(kind, '__name__', kind)}")
    return value
