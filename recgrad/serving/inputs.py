"""From encoded rows to the inputs of a dense program.

Each input is made once, in the form that the program takes: the lookup kernel writes the vectors of
embeddings where the program reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.data.encoded import Encoded, IdArrays
from recgrad.data.features.spec import FeatureSpec
from recgrad.data.plain.encoder import PlainRows
from recgrad.data.plain.layout import EMPTY
from recgrad.embedding.local.layout import BAGS, IDS, VECTOR_STRIDE, VECTORS
from recgrad.embedding.mapped.lookup import ID_STEP
from recgrad.embedding.mapped.tables import Bags, MappedTables, PreparedLookups, Target, address_of
from recgrad.errors import BundleError
from recgrad.serving.manifest import InputRecord, ProgramRecord

Array = npt.NDArray[Any]
Feeds = dict[str, Array]


@dataclass(frozen=True)
class _Field:
    """Some columns of an input: a lookup or a dense feature."""

    name: str
    feature: str
    first: int
    width: int


@dataclass(frozen=True)
class _Plan:
    """An input with the places of its fields.

    Attributes:
        record: what the manifest says of it.
        lookups: in their order.
        dense: likewise.
        into: columns that plain numbers go to.
        of: which of them go there.
        copied: they are all of the input, in their order.
    """

    record: InputRecord
    lookups: tuple[_Field, ...]
    dense: tuple[_Field, ...]
    into: list[int]
    of: list[int]
    copied: bool


class PreparedInputs:
    """The inputs of a program for plain rows that lie in the same place at every call.

    Args:
        feeds: the inputs, by name.
        lookups: what fills the part of tables; None for none.
        copies: numbers, their columns, and where these go.
    """

    def __init__(
        self,
        feeds: Feeds,
        lookups: PreparedLookups | None,
        copies: Sequence[tuple[Array, list[int], Array, list[int]]],
    ) -> None:
        self.feeds = feeds
        self._lookups, self._copies = lookups, copies

    def run(self) -> bool:
        """Fill in what the rows are now; False if an id is outside its table."""
        for numbers, of, out, into in self._copies:
            out[:, into] = numbers[:, of]
        return self._lookups is None or self._lookups.run()


class ProgramInputs:
    """Makes the inputs of one program.

    Args:
        program: what the manifest says of it.
        tables: of the bundle.
        features: specs by name.
        ids: names of the plain features that make ids, in their order.
        numbers: names of the plain features that make numbers, in their order.
    """

    def __init__(
        self,
        program: ProgramRecord,
        tables: MappedTables,
        features: Mapping[str, FeatureSpec],
        ids: Sequence[str] = (),
        numbers: Sequence[str] = (),
    ) -> None:
        self._tables = tables
        self._features = features
        self._ids = {name: i for i, name in enumerate(ids)}
        self._numbers = {name: i for i, name in enumerate(numbers)}
        self._plans, self._same = self._distinct(program.inputs)
        fields = [(number, item) for number, plan in enumerate(self._plans) for item in plan.lookups]
        self._lookups = [item.name for _, item in fields]
        self._keys = [item.feature for _, item in fields]
        self._plan_of = np.array([number for number, _ in fields], np.int64)
        self._id_of = np.array([self._ids.get(key, 0) for key in self._keys], np.int64)
        # What is known of the lookups before there are rows; addresses are added to the rest.
        self._lines = tables.lines(self._lookups, EMPTY)
        self._lines[:, VECTORS] = [4 * item.first for _, item in fields]
        self._last_lines: tuple[int, Array, Array] | None = None
        self._lines[:, VECTOR_STRIDE] = [4 * self._plans[number].record.width for number, _ in fields]

    def _distinct(self, records: Sequence[InputRecord]) -> tuple[list[_Plan], dict[str, str]]:
        """Plans of inputs, of equal ones the first; and which input each other one equals."""
        plans: list[_Plan] = []
        known: dict[InputRecord, str] = {}
        same: dict[str, str] = {}
        for record in records:
            first = known.setdefault(replace(record, name=""), record.name)
            if first == record.name:
                plans.append(self._plan(record))
            else:
                same[record.name] = first
        return plans, same

    def _plan(self, record: InputRecord) -> _Plan:
        lookups, dense, at = [], [], 0
        for name in record.lookups:
            width = self._tables.dim(name)
            lookups.append(_Field(name, self._tables.lookups[name].key, at, width))
            at += width
        for name in record.features if record.source in ("dense", "positions") else ():
            width = self._features[name].value_dim
            dense.append(_Field(name, name, at, width))
            at += width
        if at != record.width and record.source in ("dense", "lookups", "positions"):
            raise BundleError(f"manifest.json: input {record.name} is {at} wide, not {record.width}")
        pairs = [(item.first, self._numbers[item.feature]) for item in dense if item.feature in self._numbers]
        into, of = ([pair[i] for pair in pairs] for i in (0, 1))
        copied = bool(of) and into == of == list(range(len(self._numbers))) and at == len(of)
        return _Plan(record, tuple(lookups), tuple(dense), into, of, copied)

    def feeds(self, rows: PlainRows | None, rest: Encoded | None, threads: int = 1) -> Feeds:
        """The inputs of rows, by name.

        Args:
            rows: their plain features.
            rest: the other features, and those plain ones that have odd values.
            threads: to look up with.
        """
        outs = [self._unfilled(plan, rows, rest) for plan in self._plans]
        if self._lookups:
            if rows is not None and len(rows.ids):
                lines = self._lines_of(rows.size, rows.shared)
                lines[:, IDS] += address_of(rows.ids)
            else:
                lines = self._lines.copy()
            lines[:, VECTORS] += np.array([address_of(out) for out in outs], np.int64)[self._plan_of]
            bags = {} if rest is None else _bags(rest)
            for line, key in zip(lines, self._keys, strict=True) if bags else ():
                if key in bags:
                    self._tables.put_bags(line, bags[key])
            self._tables.run(self._lookups, lines, threads)
        feeds = {plan.record.name: out for plan, out in zip(self._plans, outs, strict=True)}
        for name, first in self._same.items():
            feeds[name] = feeds[first]
        return feeds

    def room(self, rows: int) -> list[Array]:
        """Memory for the inputs of so many plain rows, for `prepare`."""
        return [np.zeros(0 if p.copied else rows * p.record.width, np.float32) for p in self._plans]

    def prepare(self, rows: PlainRows, room: Sequence[Array]) -> PreparedInputs | None:
        """What makes the inputs of plain rows again and again, as their values change but not their place.

        Args:
            rows: where they lie.
            room: takes the inputs; of `room`, for at least as many rows.

        Returns:
            None where inputs need more than plain features, or tables move.
        """
        outs, copies = [], []
        for plan, memory in zip(self._plans, room, strict=True):
            width = plan.record.width
            if plan.record.source not in ("lookups", "dense") or len(plan.into) != len(plan.dense):
                return None
            outs.append(rows.numbers if plan.copied else memory[: rows.size * width].reshape(-1, width))
            if plan.into and not plan.copied:
                copies.append((rows.numbers, plan.of, outs[-1], plan.into))
        feeds = {plan.record.name: out for plan, out in zip(self._plans, outs, strict=True)}
        feeds |= {name: feeds[first] for name, first in self._same.items()}
        if not self._lookups:
            return PreparedInputs(feeds, None, copies)
        lines = self._lines_of(rows.size, rows.shared)
        lines[:, IDS] += address_of(rows.ids)
        lines[:, VECTORS] += np.array([address_of(out) for out in outs], np.int64)[self._plan_of]
        lookups = self._tables.prepare(lines)
        return None if lookups is None else PreparedInputs(feeds, lookups, copies)

    def _lines_of(self, size: int, shared: Array) -> Array:
        """Lines for plain rows, but for addresses; those of the call before are often what is wanted."""
        last = self._last_lines
        if last is None or last[0] != size or last[1] is not shared:
            lines = self._lines.copy()
            lines[:, IDS] = 8 * size * self._id_of
            lines[:, ID_STEP] = 8 * (1 - shared[self._id_of])
            lines[:, BAGS] = size
            last = self._last_lines = size, shared, lines
        return last[2].copy()

    def _unfilled(self, plan: _Plan, rows: PlainRows | None, rest: Encoded | None) -> Array:
        """An input, but for its lookups."""
        record = plan.record
        if rest is None or (rows is not None and record.source in ("lookups", "dense")):
            assert rows is not None
            if plan.copied and rest is None:
                return rows.numbers
            out = (np.zeros if plan.dense else np.empty)((rows.size, record.width), np.float32)
            if plan.into:
                out[:, plan.into] = rows.numbers[:, plan.of]
            if rest is not None:
                for item in plan.dense:
                    if item.feature in rest.dense.keys:
                        out[:, item.first : item.first + item.width] = rest.dense[item.feature]
            return out
        return self._input(plan, rest, [])

    def candidate_feeds(self, user: Encoded, items: Encoded, threads: int = 1) -> Feeds:
        """The inputs of one user's row with each of the items' rows; each feature is of one of the two.

        What is of the user is looked up and pooled once.
        """
        count = items.size
        of_user = {*user.dense.keys, *user.sparse.keys, *user.sequence_lengths}
        once: list[Target] = []
        firsts = [self._user_part(plan, user, of_user, once) for plan in self._plans]
        if once:
            self._tables.look_up(once, _bags(user), threads)
        feeds: Feeds = {}
        targets: list[Target] = []
        for plan, first in zip(self._plans, firsts, strict=True):
            record = plan.record
            if record.source == "places":
                longest = max(longest_sequence(user), longest_sequence(items), 1)
                feeds[record.name] = np.arange(longest)
            elif first is None:
                feeds[record.name] = self._input(plan, items, targets)
            elif record.source in ("positions", "lengths", "times"):
                feeds[record.name] = np.tile(first, (count, 1) if first.ndim == 2 else count)
            else:
                feeds[record.name] = out = np.repeat(first, count, axis=0)
                self._fill(plan, items, out, targets, lambda name: name not in of_user)
        if targets:
            self._tables.look_up(targets, _bags(items), threads)
        for name, equal in self._same.items():
            feeds[name] = feeds[equal]
        return feeds

    def _user_part(
        self, plan: _Plan, user: Encoded, of_user: Collection[str], targets: list[Target]
    ) -> Array | None:
        """What an input has of the user's row, zeros elsewhere; None if it has nothing."""
        record = plan.record
        if record.source == "lengths":
            return user.sequence_lengths[record.features[0]] if record.features[0] in of_user else None
        if record.source == "times":
            return _times(user, record.features[0]) if record.features[0] in of_user else None
        if not any(item.feature in of_user for item in (*plan.lookups, *plan.dense)):
            return None
        size = 1
        if record.source == "positions":
            size = int(user.sequence_lengths[(plan.lookups or plan.dense)[0].feature].sum())
        out = np.zeros((size, record.width), np.float32)
        self._fill(plan, user, out, targets, lambda name: name in of_user)
        return out

    def _fill(
        self,
        plan: _Plan,
        encoded: Encoded,
        out: Array,
        targets: list[Target],
        wanted: Callable[[str], bool],
    ) -> None:
        """Write the dense fields whose features are wanted, and note where lookups go."""
        for item in plan.lookups:
            if wanted(item.feature):
                targets.append(Target(item.name, out[:, item.first : item.first + item.width]))
        for item in plan.dense:
            if wanted(item.feature):
                values = _dense(encoded, item.feature, plan.record.source)
                out[:, item.first : item.first + item.width] = 0 if values is None else values

    def _input(self, plan: _Plan, encoded: Encoded, targets: list[Target]) -> Array:
        record = plan.record
        if record.source == "places":
            return np.arange(max(longest_sequence(encoded), 1))
        if record.source == "lengths":
            return encoded.sequence_lengths[record.features[0]]
        if record.source == "times":
            return _times(encoded, record.features[0])
        size = encoded.size
        if record.source == "positions":
            size = int(encoded.sequence_lengths[(plan.lookups or plan.dense)[0].feature].sum())
        out = np.empty((size, record.width), np.float32)
        self._fill(plan, encoded, out, targets, lambda _: True)
        return out


def by_row_only(program: ProgramRecord, lookups: Mapping[str, str]) -> set[str]:
    """The features of a program that no input reads but as ids or numbers of rows.

    Args:
        program: the program.
        lookups: the feature of each lookup.
    """
    others = [record for record in program.inputs if record.source not in ("lookups", "dense")]
    read = {name for record in others for name in (*record.features, *(lookups[n] for n in record.lookups))}
    return set(program.features) - read


def one_sided(program: ProgramRecord, lookups: Mapping[str, str], users: Collection[str]) -> set[str]:
    """The features among `users` that stay the user's: sequences of one group are all of one side.

    Args:
        program: whose inputs say which sequences belong together.
        lookups: the feature of each lookup.
        users: features that read columns of the user alone.
    """
    groups: dict[str, set[str]] = {}
    for record in program.inputs:
        if record.source in ("positions", "lengths"):
            name = ".".join(record.name.split(".")[:2])
            groups.setdefault(name, set()).update(record.features, (lookups[n] for n in record.lookups))
    stay = set(users)
    while moved := {f for group in groups.values() if not group <= stay for f in group & stay}:
        stay -= moved
    return stay


def longest_sequence(encoded: Encoded) -> int:
    """Positions of the longest sequence of any row."""
    return max((int(lengths.max(initial=0)) for lengths in encoded.sequence_lengths.values()), default=0)


def _dense(encoded: Encoded, feature: str, source: str) -> Array | None:
    """Values of a dense feature; None where a tower alone is computed and the feature is of the other."""
    if source == "positions":
        return encoded.sequence_dense[feature]
    return encoded.dense[feature] if feature in encoded.dense.keys else None


def _times(encoded: Encoded, feature: str) -> Array:
    """Numbers of rows or positions in float64."""
    if feature in encoded.sequence_dense:
        return encoded.sequence_dense[feature][:, 0].astype(np.float64)
    if feature in encoded.precise:
        return encoded.precise[feature]
    return encoded.dense[feature][:, 0].astype(np.float64)


def _bags(encoded: Encoded) -> dict[str, Bags]:
    """The ids of every feature."""
    found: dict[str, Bags] = {}
    for ids in (encoded.sparse, encoded.sequence_sparse):
        if ids is not None:
            found.update(_bags_of(ids))
    return found


def _bags_of(ids: IdArrays) -> dict[str, Bags]:
    found: dict[str, Bags] = {}
    first = 0
    for key, count in zip(ids.keys, ids.bag_counts, strict=True):
        if ids.single:
            weights = None if ids.weights is None else ids.weights[first : first + count]
            found[key] = Bags(ids.values[first : first + count], None, weights)
        else:
            # Offsets count from the start of all ids.
            found[key] = Bags(ids.values, ids.offsets[first : first + count + 1], ids.weights)
        first += count
    return found
