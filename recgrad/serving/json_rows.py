"""Many JSON bodies as Arrow columns in one go; see `json_kernel` for what is read this way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.arrow_columns import dtype_of
from recgrad.data.plain import layout
from recgrad.data.plain.encoder import Cells
from recgrad.serving import cells_kernel
from recgrad.serving import json_kernel as kernel
from recgrad.serving.columns import Columns

_KINDS = {
    pa.lib.Type_INT64: kernel.INT,
    pa.lib.Type_INT32: kernel.INT,
    pa.lib.Type_INT16: kernel.INT,
    pa.lib.Type_INT8: kernel.INT,
    pa.lib.Type_DOUBLE: kernel.FLOAT,
    pa.lib.Type_FLOAT: kernel.FLOAT,
    pa.lib.Type_STRING: kernel.TEXT,
    pa.lib.Type_LARGE_STRING: kernel.TEXT,
    pa.lib.Type_BOOL: kernel.BOOL,
}
_LAYOUT = {
    **dict.fromkeys(
        (kind for kind, read in _KINDS.items() if read in (kernel.INT, kernel.BOOL)), layout.INT64
    ),
    pa.lib.Type_DOUBLE: layout.FLOAT64,
    pa.lib.Type_FLOAT: layout.WIDE_FLOAT32,
    pa.lib.Type_STRING: layout.SPANS,
    pa.lib.Type_LARGE_STRING: layout.SPANS,
}
_FEW = 64
_SHORT = 4096  # bytes
MAX_SHAPES = 4
"""Groups of bodies with different keys that are read in one batch; the rest are read in another way."""

Ints = npt.NDArray[np.int64]
_user = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True)
class Read:
    """Bodies of one shape.

    Attributes:
        bodies: their numbers.
        counts: rows of each.
        cells: of all rows, body after body.
        reader: what read them.
        users: the user of each, or None.
        nulls: whether each asks for nulls in place of an error.
    """

    bodies: list[int]
    counts: list[int]
    cells: Cells
    reader: BodyReader
    users: list[dict[str, Any] | None]
    nulls: list[bool]

    @cached_property
    def columns(self) -> Columns:
        """The cells as Arrow columns."""
        return self.reader.arrays(self.cells)


class BodyReader:
    """Reads bodies with rows of some columns.

    Args:
        types: the columns.

    Attributes:
        names, kinds, layout: of the columns: their names, what `json_kernel` reads, how cells lie.
        name_bytes, name_offsets: the names one after another, and where each begins.
        limits: int64 [columns, 2], the smallest and largest integer; equal where there are none.
    """

    def __init__(self, types: Mapping[str, pa.DataType]) -> None:
        self._types = dict(types)
        names = [name.encode() for name in types]
        self.name_bytes = np.frombuffer(b"".join(names) or b"\0", np.uint8)
        self.name_offsets = np.cumsum([0, *map(len, names)])
        self.kinds = np.array([_KINDS.get(kind.id, kernel.OTHER) for kind in types.values()], np.int64)
        self._columns = list(types.items())
        self._no_shape = np.full(len(self.kinds) + 1, -1)
        self.names = tuple(types)
        self.layout = tuple(_LAYOUT.get(kind.id, layout.NONE) for kind in types.values())
        self.limits = np.zeros((len(types), 2), np.int64)
        for c, kind in enumerate(types.values()):
            if kind.id in (pa.lib.Type_INT32, pa.lib.Type_INT16, pa.lib.Type_INT8):
                integers = np.iinfo(dtype_of(kind))
                self.limits[c] = integers.min, integers.max
        self._limited = {c: (int(low), int(high)) for c, (low, high) in enumerate(self.limits) if low < high}

    def read(self, bodies: Sequence[bytes], max_rows: int) -> tuple[list[Read], list[int]]:
        """What could be read, by shape, and the numbers of the other bodies."""
        text = bodies[0] if len(bodies) == 1 else b"".join(bodies)
        data = np.frombuffer(text, np.uint8)
        ends = np.array([*accumulate(map(len, bodies))])
        # Each row has a bracket of its own; a text with brackets in it makes room for some rows more.
        room = min(brackets(text), max_rows * len(bodies)) + 1
        left = np.arange(len(bodies))
        groups: list[Read] = []
        others: list[int] = []
        for _ in range(MAX_SHAPES):
            if not len(left):
                break
            found, group = self._read(bodies, data, ends, left, room, max_rows)
            if group is not None and len(group.bodies) == len(bodies):
                return [group], []
            codes = found[left, kernel.CODE]
            refused = set(left[codes == kernel.READ].tolist())
            if group is not None:
                groups.append(group)
                refused -= set(group.bodies)
            others += sorted([*left[codes == kernel.ODD].tolist(), *refused])
            left = left[codes == kernel.OTHER_SHAPE]
        return groups, sorted([*others, *left.tolist()])

    def _read(
        self, bodies: Sequence[bytes], data: Any, ends: Ints, wanted: Ints, room: int, max_rows: int
    ) -> tuple[Ints, Read | None]:
        size = (len(self.kinds), room)
        cells, stops = np.empty(size, np.int64), np.zeros(size, np.int64)
        states = np.empty(size, np.uint8)
        shape = self._no_shape.copy()
        found = np.zeros((len(bodies), kernel.FOUND), np.int64)
        rows = kernel.read_bodies(
            data, ends, wanted, max_rows, self.name_bytes, self.name_offsets, self.kinds, shape,
            cells, stops, states, found,
        )  # fmt: skip
        if not rows:
            return found, None
        every = found.tolist()
        numbers = [number for number in wanted.tolist() if every[number][kernel.CODE] == kernel.READ]
        lines = [every[number] for number in numbers]
        users: list[dict[str, Any] | None] = [None] * len(numbers)
        hard = False
        for at, (number, line) in enumerate(zip(numbers, lines)):
            hard |= bool(line[kernel.HIGH] & kernel.HAS_HARD)
            if line[kernel.HIGH] & kernel.HAS_HIGH or line[kernel.USER_END]:
                start = int(ends[number - 1]) if number else 0
                try:
                    if line[kernel.HIGH] & kernel.HAS_HIGH:
                        bodies[number].decode()
                    if line[kernel.USER_END]:
                        begin, end = line[kernel.USER] - start, line[kernel.USER_END] - start
                        users[at] = _user.decode(memoryview(bodies[number])[begin:end])
                except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
                    return found, None  # one of them is no JSON: each is read by itself
        present = tuple(sorted(shape[1 : 1 + shape[0]].tolist()))
        if not self._fit(present, rows, cells):
            return found, None
        if hard:
            _read_hard(data, list(present), rows, cells, stops, states)
        read = Cells(rows, self.names, self.layout, present, cells, stops, states, data)
        counts, nulls = ([line[of] for line in lines] for of in (kernel.ROWS, kernel.NULLS))
        return found, Read(numbers, counts, read, self, users, [bool(null) for null in nulls])

    def _fit(self, present: Iterable[int], rows: int, cells: Any) -> bool:
        """Whether every integer fits its column."""
        for c in present if self._limited else ():
            if c in self._limited:
                low, high = self._limited[c]
                values = cells[c, :rows]
                if values.min() < low or values.max() > high:
                    return False
        return True

    def arrays(self, read: Cells) -> Columns:
        """The cells as Arrow arrays, sharing their memory."""
        data, rows, cells, stops, states = read.text, read.size, read.values, read.ends, read.valid
        assert data is not None
        present = list(read.present)
        nulls_of, _ = cells_kernel.tally(states, np.array(present), rows)
        whole = pa.py_buffer(cells)
        width = 8 * cells.shape[1]
        texts = [c for c in present if self.kinds[c] == kernel.TEXT]
        text_buffers = _text_buffers(data, texts, rows, cells, stops) if texts else {}
        columns: Columns = {}
        for c, nulls in zip(present, nulls_of.tolist()):
            name, kind = self._columns[c]
            mask = pa.py_buffer(np.packbits(states[c, :rows] != 0, bitorder="little")) if nulls else None
            if kind.id in (pa.lib.Type_INT64, pa.lib.Type_DOUBLE):
                buffers = [mask, whole.slice(c * width, 8 * rows)]
            elif self.kinds[c] == kernel.OTHER:
                columns[name] = pa.nulls(rows, kind)  # nothing else is read of it here
                continue
            elif self.kinds[c] == kernel.TEXT:
                wide = kind.id == pa.lib.Type_LARGE_STRING
                offsets, content = text_buffers[c]
                buffers = [mask, pa.py_buffer(offsets.astype(np.int64) if wide else offsets), content]
            else:
                buffers = [mask, _narrow(cells[c, :rows], kind)]
            columns[name] = pa.Array.from_buffers(kind, rows, buffers, nulls)
        return columns


def brackets(text: bytes) -> int:
    """How many `{` a text has; bytes.count is slow where there are many."""
    if len(text) < _SHORT:
        return text.count(b"{")
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord("{")))


def _narrow(values: Any, kind: pa.DataType) -> pa.Buffer:
    """Cells as a type of fewer bytes, in which they fit."""
    if pa.types.is_boolean(kind):
        return pa.py_buffer(np.packbits(values != 0, bitorder="little"))
    if pa.types.is_float32(kind):
        with np.errstate(over="ignore"):
            return pa.py_buffer(values.view(np.float64).astype(np.float32))
    return pa.py_buffer(values.astype(dtype_of(kind)))


def _text_buffers(data: Any, texts: list[int], rows: int, cells: Any, stops: Any) -> dict[int, Any]:
    offsets = np.empty((len(texts), rows + 1), np.int32)
    content = pa.py_buffer(cells_kernel.gather_texts(data, np.array(texts), rows, cells, stops, offsets))
    found, begin = {}, 0
    for at, column in enumerate(texts):
        size = int(offsets[at, rows])
        found[column] = (offsets[at], content.slice(begin, size))
        begin += size
    return found


def _read_hard(data: Any, present: list[int], rows: int, cells: Any, stops: Any, states: Any) -> None:
    """Floats with many digits, which Arrow reads exactly."""
    where, row = np.nonzero(states[present, :rows] == kernel.HARD)
    column = np.array(present)[where]
    begins, ends = cells[column, row], stops[column, row]
    if len(begins) <= _FEW:  # Arrow's way costs more than it saves
        texts_of = [bytes(data[begin:end]) for begin, end in zip(begins.tolist(), ends.tolist())]
        cells.view(np.float64)[column, row] = [float(text) for text in texts_of]
        return
    offsets = np.zeros(len(begins) + 1, np.int32)
    np.cumsum(ends - begins, out=offsets[1:])
    one = np.zeros(1, np.int64)
    own = np.empty((1, len(begins) + 1), np.int32)
    content = cells_kernel.gather_texts(data, one, len(begins), begins[None, :], ends[None, :], own)
    texts = pa.Array.from_buffers(
        pa.string(), len(begins), [None, pa.py_buffer(own[0]), pa.py_buffer(content)]
    )
    cells.view(np.float64)[column, row] = texts.cast(pa.float64()).to_numpy()
