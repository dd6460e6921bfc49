"""One program of a bundle with what feeds it: rows are encoded, tables looked up, the program is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.arrow_columns import as_array
from recgrad.data.encoded import Encoded
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.data.features.base import Feature
from recgrad.data.plain.encoder import Cells, PlainEncoder, PlainRows, PreparedRows
from recgrad.embedding.mapped.tables import MappedTables
from recgrad.errors import BundleError, DataError
from recgrad.serving.folding import Folding
from recgrad.serving.inputs import (
    Feeds,
    PreparedInputs,
    ProgramInputs,
    by_row_only,
    longest_sequence,
    one_sided,
)
from recgrad.serving.manifest import CONFIG, ProgramRecord
from recgrad.serving.outputs import LengthCheck, Outputs, join_outputs
from recgrad.serving.program import load_program

Rows: TypeAlias = Any
"""A pyarrow Table or RecordBatch."""
MOST_PAIRS = 1 << 24
"""Rows × squares of their longest sequence at once: attention pads, and has a number for each pair."""
_SPLITS = 64  # of columns into the user's and the items' that are remembered


class BadRowsError(DataError):
    """Rows that cannot be encoded; the text is of the first.

    Attributes:
        faults: of some rows together: `faults.rows` are the bad ones, `faults.firsts()` say what is wrong.
        first_row: which row of the whole the first of these is: many rows are scored in pieces.
    """

    def __init__(self, faults: Faults, first_row: int = 0) -> None:
        first = faults.first()
        assert first is not None
        super().__init__(f"row {first_row + first.row}: {first}")
        self.faults = faults
        self.first_row = first_row


class Buffers(NamedTuple):
    """Memory that prepared scoring of any number of rows shares: ids, numbers, inputs, folds."""

    ids: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.float32]
    inputs: list[npt.NDArray[np.float32]]
    folds: list[npt.NDArray[np.float32]]


class PreparedPart(NamedTuple):
    """Scores rows that lie in the same place at every call: kernels and the program, nothing between."""

    rows: PreparedRows
    inputs: PreparedInputs
    folds: Sequence[Callable[[], None]]
    program: Callable[[], list[npt.NDArray[np.float32]]]

    def run(self) -> list[npt.NDArray[np.float32]] | None:
        """The outputs of what the cells hold now; None if others must encode them."""
        if not self.rows.run() or not self.inputs.run():
            return None
        for write in self.folds:  # whose ids the lookups have found to be in their tables
            write()
        return self.program()


class Part:
    """A program with what feeds it.

    Args:
        folder: the bundle.
        record: what the manifest says of the program.
        features: of the config, by name.
        tables: of the bundle.
        threads: of one call.

    Attributes:
        folding: the folded form of the program, for rows that are all plain; None where there is none.
    """

    def __init__(
        self,
        folder: Path,
        record: ProgramRecord,
        features: Mapping[str, Feature],
        tables: MappedTables,
        threads: int,
    ) -> None:
        unknown = [name for name in record.features if name not in features]
        if unknown:
            raise BundleError(f"{folder}: {CONFIG} has no feature '{unknown[0]}'; export the model again")
        self.record = record
        self.features = [features[name] for name in record.features]
        self.encoder = FeatureEncoder(self.features)
        self._keys = {name: lookup.key for name, lookup in tables.lookups.items()}
        by_row = by_row_only(record, self._keys)
        self._plain = PlainEncoder([feature for feature in self.features if feature.name in by_row])
        self._rests: dict[tuple[str, ...], FeatureEncoder | None] = {}
        specs = {name: feature.spec for name, feature in features.items()}
        self.inputs = ProgramInputs(record, tables, specs, self._plain.ids, self._plain.numbers)
        self.program = load_program(folder, record, threads)
        plain = self._plain.ids if len(self._plain.features) == len(self.features) else ()
        self.folding = Folding.of(folder, record, tables, plain, threads)
        self.threads = threads
        self._pads = any(item.source == "places" for item in record.inputs)
        self._lengths = LengthCheck(record.equal_lengths, features)
        self._splits: dict[tuple[frozenset[str], frozenset[str]], tuple[FeatureEncoder, FeatureEncoder]] = {}

    def run(self, rows: Rows) -> Outputs:
        """The outputs of rows, of one at least."""
        batch = _one_batch(rows)
        plain = None if batch is None else self._plain.encode(batch)
        encoder = self.encoder if plain is None else self._rest(plain)
        rest = None if encoder is None else self._encode(encoder, rows)
        if rest is not None and self._pads and rows.num_rows > 1:
            step = max(MOST_PAIRS // max(longest_sequence(rest) ** 2, 1), 1)
            if rows.num_rows > step:
                return join_outputs([self.run(rows.slice(i, step)) for i in range(0, rows.num_rows, step)])
        if rest is None:
            assert plain is not None
            return self._plain_outputs(plain)
        return self._outputs(self.inputs.feeds(plain, rest, self.threads), rest.sequence_lengths)

    def _plain_outputs(self, rows: PlainRows) -> Outputs:
        """What the program gives for rows whose features are all plain."""
        feeds = self.inputs.feeds(rows, None, self.threads)
        if self.folding is None:
            return self._outputs(feeds, {})
        return Outputs(self.folding.program({**feeds, **self.folding.feeds(rows)}), None)

    def _outputs(self, feeds: Feeds, lengths: Mapping[str, npt.NDArray[Any]]) -> Outputs:
        """What the program gives for rows whose sequences have these lengths."""
        arrays = self.program(feeds)
        return Outputs(arrays, lengths[self.record.lists] if self.record.lists else None)

    def _encode(self, encoder: FeatureEncoder, rows: Rows) -> Encoded:
        """The features of rows."""
        faults = Faults()
        encoded = encoder.encode_table(rows, faults)
        self._lengths.check(encoded.sequence_lengths, faults)
        if faults:
            raise BadRowsError(faults)
        return encoded

    def run_cells(self, cells: Cells) -> Outputs | None:
        """The outputs of rows that were read from JSON, of one at least; None if others must encode them."""
        plain = self._plain.encode_cells(cells)
        if plain is None or self._rest(plain) is not None:
            return None
        return self._plain_outputs(plain)

    def buffers(self, cells: Cells) -> Buffers:
        """Memory for as many rows as cells have room for, for `prepare`."""
        rows = cells.values.shape[1]
        ids = np.zeros(len(self._plain.ids) * rows, np.int64)
        numbers = np.zeros(len(self._plain.numbers) * rows, np.float32)
        folds = [] if self.folding is None else self.folding.folds
        room = [np.zeros(rows * fold.units, np.float32) for fold in folds]
        return Buffers(ids, numbers, self.inputs.room(rows), room)

    def prepare(self, cells: Cells, buffers: Buffers) -> PreparedPart | None:
        """What scores cells again and again, as their values change but not their place and number.

        Returns:
            None where features are more than plain.
        """
        if len(self._plain.features) < len(self.features) or self.record.lists:
            return None
        size = cells.size
        ids = buffers.ids[: len(self._plain.ids) * size].reshape(-1, size)
        numbers = buffers.numbers[: len(self._plain.numbers) * size].reshape(size, -1)
        plain = self._plain.prepare(cells, ids, numbers)
        inputs = None if plain is None else self.inputs.prepare(plain.rows, buffers.inputs)
        if plain is None or inputs is None:
            return None
        if self.folding is None:
            return PreparedPart(plain, inputs, (), self.program.prepare(inputs.feeds))
        feeds, writes = dict(inputs.feeds), []
        for fold, room in zip(self.folding.folds, buffers.folds, strict=True):
            out = feeds[fold.name] = room[: size * fold.units].reshape(size, -1)
            writes.append(fold.prepare(plain.rows, out))
        return PreparedPart(plain, inputs, writes, self.folding.program.prepare(feeds))

    def _rest(self, plain: PlainRows) -> FeatureEncoder | None:
        """What encodes the features that are not plain, or not in these rows; None if there are none."""
        if plain.odd in self._rests:
            return self._rests[plain.odd]
        done = {feature.name for feature in self._plain.features}.difference(plain.odd)
        rest = [feature for feature in self.features if feature.name not in done]
        encoder = FeatureEncoder(rest) if rest else None
        if len(self._rests) < _SPLITS:
            self._rests[plain.odd] = encoder
        return encoder

    def run_candidates(self, user: Rows, items: Rows) -> Outputs:
        """The outputs of one user's row with each of the items' rows, of which there is one at least."""
        both = _one_batch(user), _one_batch(items)
        if both[0] is not None and both[1] is not None:
            plain = self._plain.encode(both[1], both[0])
            if plain is not None and self._rest(plain) is None:
                return self._plain_outputs(plain)
        of_user, of_items = self._split(frozenset(user.schema.names), frozenset(items.schema.names))
        missing = [name for name in of_items.columns if name in user.schema.names]
        if missing:
            every = as_array(np.zeros(items.num_rows, np.int64))
            for name in missing:
                items = items.append_column(name, user.column(name).take(every))
        user_faults, faults = Faults(), Faults()
        user_row = of_user.encode_table(user, user_faults)
        item_rows = of_items.encode_table(items, faults)
        self._lengths.check(user_row.sequence_lengths, user_faults)
        self._lengths.check(item_rows.sequence_lengths, faults)
        if user_faults or faults:
            raise BadRowsError(user_faults or faults)
        lengths = {**_each(user_row.sequence_lengths, items.num_rows), **item_rows.sequence_lengths}
        self._lengths.check(lengths, faults)
        if faults:
            raise BadRowsError(faults)
        return self._outputs(self.inputs.candidate_feeds(user_row, item_rows, self.threads), lengths)

    def _split(self, user: frozenset[str], items: frozenset[str]) -> tuple[FeatureEncoder, FeatureEncoder]:
        """Encoders of what reads columns of the user alone, and of the rest."""
        known = self._splits.get((user, items))
        if known is not None:
            return known
        both = sorted((user & items).intersection(self.encoder.columns))
        if both:
            raise DataError(f"column '{both[0]}' is both the user's and the items'; leave one out")
        alone = {f.name for f in self.features if user.issuperset(_columns(f))}
        alone = one_sided(self.record, self._keys, alone)
        split = (
            FeatureEncoder([f for f in self.features if f.name in alone]),
            FeatureEncoder([f for f in self.features if f.name not in alone]),
        )
        if len(self._splits) < _SPLITS:
            self._splits[user, items] = split
        return split


def _each(lengths: Mapping[str, npt.NDArray[Any]], count: int) -> dict[str, npt.NDArray[Any]]:
    """Lengths of one row as those of `count` equal ones."""
    return {name: np.tile(values, count) for name, values in lengths.items()}


def _one_batch(rows: Rows) -> pa.RecordBatch | None:
    """Rows as one batch; None where their columns lie in several pieces."""
    if isinstance(rows, pa.RecordBatch):
        return rows
    batches = rows.to_batches()
    return batches[0] if len(batches) == 1 else None


def _columns(feature: Feature) -> set[str]:
    """The columns that a feature reads, itself or through others."""
    return set(feature.columns).union(*(_columns(needed) for needed in feature.needs))
