"""Which features are plain, and what the kernel needs to know of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.data.features.base import Feature
from recgrad.data.features.buckets import Boundaries, HashBuckets, NumBuckets, Vocabulary
from recgrad.data.features.config import AsIntegers
from recgrad.data.features.normalizers import Linear
from recgrad.data.features.outputs import FloatOutput, IdOutput
from recgrad.data.plain import layout as at

Array = npt.NDArray[Any]
_STEPS = ("encode", "transform", "_finish", "_read")
_HASHES = {"XXH64": at.XXH64, "MURMUR64": at.MURMUR64}


@dataclass
class Line:
    """A feature as the kernel knows it.

    Attributes:
        feature: the feature.
        numbers: by the columns of `layout`.
        floats: likewise.
        kept: arrays whose addresses are among the numbers.
    """

    feature: Feature
    numbers: Array = field(default_factory=lambda: np.zeros(at.FEATURE_COLUMNS, np.int64))
    floats: Array = field(default_factory=lambda: np.array([0.0, 0.0, 1.0]))
    kept: list[Array] = field(default_factory=list)

    @property
    def dense(self) -> bool:
        """Whether it makes numbers, not ids."""
        return bool(self.numbers[at.MAKES] == at.DENSE)

    def put(self, column: int, array: Array) -> None:
        """Note the address of an array, and keep it."""
        array = np.ascontiguousarray(array)
        self.kept.append(array)
        self.numbers[column] = array.__array_interface__["data"][0]


def plain_line(feature: Feature) -> Line | None:
    """What the kernel is told of a feature; None if it is no plain one.

    A plain feature passes the values of one column, one a row, to one of the outputs that the kernel
    knows. Kinds of a user's own are plain if they take every step as Recgrad's do.
    """
    own = any(getattr(type(feature), step) is not getattr(Feature, step) for step in _STEPS)
    if own or feature.weighted or feature.spec.sequence or len(feature.inputs) != 1:
        return None
    source = feature.inputs[0]
    if source.source != "column" or source.pairs or source.slots or source.sequence:
        return None
    line = Line(feature)
    if source.separator is not None:
        mark = np.frombuffer(source.separator.encode(), np.uint8)
        line.put(at.SEPARATOR, mark)
        line.numbers[at.SEPARATOR_BYTES] = len(mark)
    fill = _OUTPUTS.get(type(feature.output))
    return line if fill is not None and fill(feature.output, line) else None


def _id_output(output: IdOutput, line: Line) -> bool:
    if len(output.default_ids) > 1 or (output.exact and output.value_dim != 1):
        return False
    numbers, bucketizer = line.numbers, output.bucketizer
    if isinstance(bucketizer, AsIntegers):
        numbers[at.AS_INTEGERS], bucketizer = 1, bucketizer.bucketizer
    fill = _BUCKETIZERS.get(type(bucketizer))
    if fill is None or not fill(bucketizer, line):
        return False
    numbers[at.SIZE] = bucketizer.num_rows
    numbers[at.DEFAULT] = output.default_ids[0] if len(output.default_ids) else at.EMPTY
    return True


def _float_output(output: FloatOutput, line: Line) -> bool:
    numbers, boundaries = line.numbers, output.boundaries
    if output.double or output.value_dim > 1 or len(output.default) > 1:
        return False
    if output.normalizer is not None:
        if not isinstance(output.normalizer, Linear):
            return False
        numbers[at.NORMALIZES] = 1
        line.floats[[at.SHIFT, at.SCALE]] = output.normalizer.shift, output.normalizer.scale
    if boundaries is None:
        numbers[at.MAKES], numbers[at.DEFAULT] = at.DENSE, len(output.default)
        line.floats[at.DEFAULT_NUMBER] = output.default[0] if len(output.default) else 0.0
        return True
    numbers[at.MAKES], numbers[at.EDGE_COUNT] = at.BOUNDARIES, len(boundaries.double)
    line.put(at.EDGES, boundaries.double)
    line.put(at.SINGLE_EDGES, boundaries.single)
    numbers[[at.DEFAULT, at.SINGLE_DEFAULT]] = _default_buckets(boundaries, output.default)
    return True


def _default_buckets(boundaries: Boundaries, default: Array) -> tuple[int, int]:
    """The bucket of the default among boundaries of float64 and of float32."""
    if not len(default):
        return at.EMPTY, at.EMPTY
    with np.errstate(over="ignore"):
        single = default.astype(np.float32)
    return int(boundaries(default)[0]), int(boundaries(single)[0])


def _num_buckets(bucketizer: NumBuckets, line: Line) -> bool:
    line.numbers[at.MAKES] = at.NUM_BUCKETS
    return True


def _hash_buckets(bucketizer: HashBuckets, line: Line) -> bool:
    line.numbers[at.MAKES] = _HASHES.get(bucketizer.hash, at.DENSE)
    return bucketizer.hash in _HASHES


def _vocabulary(bucketizer: Vocabulary, line: Line) -> bool:
    line.numbers[at.MAKES] = at.VOCABULARY
    line.put(at.WORDS, bucketizer.words.data)
    line.put(at.WORD_STARTS, bucketizer.words.starts)
    line.put(at.WORD_ENDS, bucketizer.words.ends)
    line.put(at.WORD_IDS, bucketizer.word_ids)
    line.put(at.SLOTS, bucketizer.slots)
    line.numbers[[at.SLOT_COUNT, at.UNKNOWN]] = len(bucketizer.slots), bucketizer.unknown
    return True


_OUTPUTS: dict[type, Callable[[Any, Line], bool]] = {IdOutput: _id_output, FloatOutput: _float_output}
_BUCKETIZERS: dict[type, Callable[[Any, Line], bool]] = {
    NumBuckets: _num_buckets,
    HashBuckets: _hash_buckets,
    Vocabulary: _vocabulary,
}
