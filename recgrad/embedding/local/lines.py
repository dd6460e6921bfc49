"""The rows of a table in memory, each with its optimizer's states; layout.py has a picture of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recgrad.embedding.engine import TablePart
from recgrad.embedding.local.headings import line_width, unpack
from recgrad.embedding.local.layout import READ, STRIDE, WEIGHTS
from recgrad.embedding.local.memory import Region
from recgrad.embedding.local.row_copy import RowCopy
from recgrad.embedding.local.stored import as_floats, first_bits, floats_of, stored_of
from recgrad.kernels.simd import F32
from recgrad.optim.sparse.history import HEADING, MISSED, STEP, STORED, moved

Array = npt.NDArray[Any]
_LINES, _FIRST_BITS, _WEIGHTS = "/lines", "/first bits", "/weights"  # beside states, whose names have no /
_PIECE_ROWS = 1 << 18


@dataclass(frozen=True)
class StateArray:
    """One state of the optimizer: `width` float32 a row.

    Attributes:
        place: where that of a row begins, in float32 from where the row does.
        region: where it lies instead, if not behind the weights.
    """

    name: str
    width: int
    initial: float
    place: int
    region: Region | None = None

    @property
    def moves(self) -> bool:
        """Whether it says how rows move on that no batch touches; see `headings.py`."""
        return self.name in (HEADING, STEP)


class Lines:
    """The memory of a table's rows.

    Args:
        numbers: the table's line, in which kernels find it.
        height: slots that there may be.
        dim: of the rows.
        kind: of the weights, as kernels know it.
        reserve: makes a region of so many bytes for what it is told.

    Attributes:
        states: of the optimizer, by name.
        behind: float32 from the start of a row to what is behind its weights.
    """

    def __init__(
        self, numbers: Array, height: int, dim: int, kind: int, reserve: Callable[[int, str], Region]
    ) -> None:
        self._numbers, self._height, self._dim, self._kind = numbers, height, dim, kind
        self._reserve = reserve
        self._size = dim * (4 if kind == F32 else 2)
        self.behind = -(-self._size // 4)
        self.states: dict[str, StateArray] = {}
        self._lay_out(0)

    def _lay_out(self, beside: int) -> None:
        """Make room for rows with some float32 behind the weights of each, all 0."""
        self._line = 4 * (self.behind + beside) if beside else self._size
        self._set(self._reserve(self._height * self._line, "weights"))
        self._numbers[[STRIDE, READ]] = self._line, self._size

    def _set(self, region: Region) -> None:
        self._region = region
        self._numbers[WEIGHTS] = region.address

    def set_states(self, states: Sequence[tuple[str, int, float]], slots: Array | None) -> None:
        """Make room for states (name, width, initial value), all 0; the weights of some slots move along."""
        dim = self._dim
        moves = any(name == HEADING for name, _, _ in states)
        own = [state for state in states if state[0] not in (HEADING, STEP)]
        beside = (line_width(dim) if moves else 0) + sum(width for _, width, _ in own if width == dim)
        if beside or self._line > 4 * self.behind:
            stored = None if slots is None else self.stored()[slots]
            self._lay_out(beside)
            if slots is not None:
                self.stored()[slots] = stored
        at = self.behind
        self.states = {}
        if moves:  # lookups read the direction, so it comes first
            self.states = {name: StateArray(name, width, first, at) for name, width, first in states}
            at += line_width(dim)
            self._numbers[READ] = 4 * at
        for name, width, initial in own:
            region = None if width == dim else self._reserve(self._height * width * 4, f"state {name}")
            self.states[name] = StateArray(name, width, initial, at, region)
            at += width if region is None else 0

    def rearrange(self, rows: Array, slots: Array, reserve: Callable[[int, str], Region]) -> None:
        """Let these rows, which are at slots, be at their numbers, in other regions."""
        self._reserve = reserve
        self._set(self._moved(self._bytes(), rows, slots, "weights"))
        self.states = {
            name: state
            if state.region is None
            else replace(state, region=self._moved(self.state(state), rows, slots, f"state {name}"))
            for name, state in self.states.items()
        }

    def _moved(self, old: Array, rows: Array, slots: Array, what: str) -> Region:
        """A new region of the size of an old array, [height, width], with some of its slots at their rows."""
        region = self._reserve(old.nbytes, what)
        new = region.array(old.dtype, old.shape)
        for first in range(0, len(rows), _PIECE_ROWS):
            span = slice(first, first + _PIECE_ROWS)
            new[rows[span]] = np.take(old, slots[span], axis=0)
        return region

    # --- views ---

    def _bytes(self) -> Array:
        return self._region.array(np.uint8, (self._height, self._line))

    def stored(self) -> Array:
        """The weights of all slots, [slots, dim]: float32, or uint16 for short types."""
        return stored_of(self._bytes(), self._kind, self._dim)

    def state(self, state: StateArray) -> Array:
        """A state of all slots, [slots, width]."""
        if state.region is not None:
            return state.region.array(np.float32, (self._height, state.width))
        return floats_of(self._bytes(), state.place, state.width)

    def headings(self) -> Array:
        """Directions and last updates of all slots, as `headings.py` packs them."""
        return floats_of(self._bytes(), self.behind, line_width(self._dim))

    def place(self, state: StateArray) -> tuple[int, int]:
        """The address of a state of slot 0, and the bytes from slot to slot."""
        if state.region is not None:
            return state.region.address, 4 * state.width
        return self._region.address + 4 * state.place, self._line

    # --- rows of one moment ---

    def begin_copy(
        self,
        slots: int,
        places: Callable[[], tuple[Array, Array]],
        bits: Array | None,
        missed: Callable[[Array], Array] | None,
    ) -> RowCopy:
        """What the first slots have learned by now, while others are written; see `RowCopy`.

        Args:
            slots: how many of them.
            places: rows and their slots.
            bits: the first bits of the slots now, [slots, 1], where not updates alone change them.
            missed: by last updates, what rows have missed by now, for rows that move on.
        """
        arrays = {name: self.state(state) for name, state in self.states.items() if state.region}
        if bits is not None:
            arrays[_FIRST_BITS] = bits
        learned = partial(_learned, self._kind, self._dim, self.behind, self.states, missed)
        return RowCopy({**arrays, _LINES: self._bytes()}, slots, places, learned)


def part_of(copy: RowCopy) -> TablePart:
    """All rows of a copy, and what they have learned; for a thread beside that of the steps."""
    rows, states = copy.collect(beside=True)
    return TablePart(0, rows, states[_WEIGHTS], {name: s for name, s in states.items() if name != _WEIGHTS})


class StateArrays(NamedTuple):
    """The optimizer's states of some tables, as kernels read them."""

    number: int
    addresses: Array  # [tables, states], of slot 0
    strides: Array  # [tables, states], bytes from slot to slot
    initials: Array  # [tables, states], what a row that is new begins with
    widths: Array  # [states]


def state_arrays(tables: Sequence[Lines]) -> StateArrays:
    """The states of tables that have the same ones."""
    first = list(tables[0].states.values())
    shape = (len(tables), max(len(first), 1))
    addresses, strides = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    initials = np.zeros(shape, np.float32)
    for i, table in enumerate(tables):
        for k, state in enumerate(table.states.values()):
            addresses[i, k], strides[i, k] = table.place(state)
            initials[i, k] = state.initial
    widths = np.array([state.width for state in first] or [0], np.int64)
    return StateArrays(len(first), addresses, strides, initials, widths)


def _learned(
    kind: int,
    dim: int,
    behind: int,
    states: Mapping[str, StateArray],
    missed_by: Callable[[Array], Array] | None,
    copies: dict[str, Array],
) -> tuple[Array, dict[str, Array]]:
    """Which of some copied rows were written, and the weights and states of them all."""
    lines = copies[_LINES]
    stored = stored_of(lines, kind, dim)
    if _FIRST_BITS in copies:
        first_bits(stored, kind)[:] = copies[_FIRST_BITS][:, 0]
    written = first_bits(stored, kind) != 0
    learned = {
        name: copies[name] if state.region else floats_of(lines, state.place, state.width)
        for name, state in states.items()
        if not state.moves
    }
    weights = as_floats(stored, kind)
    if missed_by is None:
        return written, {_WEIGHTS: weights, **learned}
    headings, steps = unpack(floats_of(lines, behind, line_width(dim)), dim)
    missed = missed_by(steps)
    learned |= {HEADING: headings, STEP: steps[:, None], STORED: weights, MISSED: missed}
    return written, {_WEIGHTS: moved(weights, headings, missed), **learned}
