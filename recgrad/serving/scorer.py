"""Scores rows with a bundle: the features of training, tables from mapped files, a dense program; no torch.

    scorer = Scorer.load("bundle")
    scorer.score(table)                    # {"probs": float32 [rows]}, the columns of `recgrad predict`
    scorer.score_candidates(user, items)   # one user's row and many items' rows
    scorer.embed(table, "item")            # vectors of one tower

A scorer holds no state between calls, so any number of threads may share one; it is pickled by its path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.calibration.stored import CALIBRATION, Calibration, read_calibration
from recgrad.config import load_config
from recgrad.config.files import named_files
from recgrad.data.arrow_columns import as_array, as_numbers
from recgrad.data.encoded import Encoded
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.data.features.base import Feature
from recgrad.data.features.build import features_of
from recgrad.data.features.spec import FeatureSpec
from recgrad.data.list_column import Column
from recgrad.data.plain.encoder import Cells, PlainEncoder, PlainRows
from recgrad.embedding.mapped.tables import MappedTables
from recgrad.errors import BundleError, ConfigError, DataError
from recgrad.retrieval.tower_names import tower_hint
from recgrad.serving.explain import explain
from recgrad.serving.inputs import Feeds, ProgramInputs, by_row_only, longest_sequence, one_sided
from recgrad.serving.manifest import CONFIG, GOLDEN, GOLDEN_SCORES, Manifest, ProgramRecord, read_manifest
from recgrad.serving.outputs import LengthCheck, Outputs, join_outputs
from recgrad.serving.program import load_program
from recgrad.serving.verify import checking

Rows: TypeAlias = Any
"""A pyarrow Table or RecordBatch."""
Scores = dict[str, Column]
"""Predictions by name: float32 [rows] or [rows, classes], or lists of them."""
SCORE = "score"
"""The program of `score`; others are towers."""
RAW = "raw:"
"""Before the name of an output: golden scores before calibration."""
CHUNK_ROWS = 4096
"""Rows that are scored at once: more need more memory, and are no faster."""
MOST_PAIRS = 1 << 24
"""Rows × squares of their longest sequence at once: attention pads, and has a number for each pair."""
_SPLITS = 64  # of columns into the user's and the items' that are remembered
_ABSOLUTE, _RELATIVE = 1e-5, 1e-4  # how far other machines may be from golden scores


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


class _Part:
    """A program with what feeds it.

    Args:
        folder: the bundle.
        record: what the manifest says of the program.
        features: of the config, by name.
        tables: of the bundle.
        threads: of one call.
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
        feeds = self.inputs.feeds(plain, rest, self.threads)
        return self._outputs(feeds, {} if rest is None else rest.sequence_lengths)

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
        return self._outputs(self.inputs.feeds(plain, None, self.threads), {})

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
                return self._outputs(self.inputs.feeds(plain, None, self.threads), {})
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


class Scorer:
    """A loaded bundle.

    Attributes:
        path: of the bundle.
        manifest: what manifest.json says: versions, model, outputs, sizes, metrics.
        features: what each feature looks like to the model.
        schema: the columns that `score` reads, with the types that they had when the bundle was written;
            other types are taken as training takes them. A table may have other columns too.
        outputs: names of the columns that `score` gives.
        tasks: names of the tasks; "" for a model of one.
        towers: names that `embed` takes; () for a model without towers.
        golden: some rows that the bundle was written with, of `schema`.
        calibration: what maps the program's probabilities to those that `score` gives; None for none.
    """

    path: Path
    manifest: Manifest
    features: tuple[FeatureSpec, ...]
    schema: pa.Schema
    outputs: tuple[str, ...]
    tasks: tuple[str, ...]
    towers: tuple[str, ...]
    golden: pa.Table
    calibration: Calibration | None = None
    table_kind: type[MappedTables] = MappedTables

    def __init__(
        self,
        path: str | Path,
        *,
        threads: int = 1,
        verify: bool = True,
        golden: bool = True,
        raw_scores: bool = False,
    ) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self.path = Path(path).absolute()
        self._threads, self._verify, self._raw = threads, verify, raw_scores
        self.manifest = manifest = read_manifest(self.path)
        with checking(self.path, manifest.files, tables=verify) as finish:
            features = {feature.name: feature for feature in _features(self.path)}
            tables = self.table_kind(self.path, manifest.tables, manifest.lookups)
            self._tables = tables
            self._parts = {
                name: _Part(self.path, record, features, tables, threads)
                for name, record in manifest.programs.items()
            }
            if CALIBRATION in manifest.files:
                self.calibration = read_calibration(self.path / CALIBRATION)
            finish()
        if SCORE not in self._parts:
            raise BundleError(f"{self.path}: has no program '{SCORE}'; export the model again")
        self.features = tuple(feature.spec for feature in self._parts[SCORE].features)
        self.outputs = manifest.programs[SCORE].outputs
        self.tasks = tuple(task.name for task in manifest.tasks)
        self.towers = tuple(name for name in manifest.programs if name != SCORE)
        self.golden = _read_arrow(self.path / GOLDEN)
        self.schema = self.golden.schema
        self._none = self._check_golden(compare=golden)
        if raw_scores:
            self.calibration = None

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        threads: int = 1,
        verify: bool = True,
        golden: bool = True,
        raw_scores: bool = False,
    ) -> Scorer:
        """Open a bundle; it is refused unless it is whole and reproduces its golden rows.

        Args:
            path: the folder that `recgrad export` wrote.
            threads: that one call computes with; several calls may run at once.
            verify: compare every byte of the tables with its checksum; without it only their sizes are.
            golden: whether golden rows must score as they did; `recgrad export` itself asks without.
            raw_scores: leave out the bundle's calibration, if it has one.

        Raises:
            BundleError: it is not a bundle, damaged, or of another version.
        """
        return cls(path, threads=threads, verify=verify, golden=golden, raw_scores=raw_scores)

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (str(self.path), self._threads, self._verify, self._raw)

    def score(self, rows: Rows) -> Scores:
        """The predictions of rows, by the names of `outputs`: float32 [rows], or [rows, classes].

        Of a model that scores lists of candidates, a `ListColumn` with a value for each of them.

        Raises:
            BadRowsError: some rows cannot be encoded.
            DataError: a column is missing or of a type that a feature cannot read.
        """
        return self._named(self._run(SCORE, rows))

    def score_cells(self, cells: Cells) -> Scores | None:
        """As `score`, of rows that were read from JSON; None where they must become a table first."""
        if not 0 < cells.size <= CHUNK_ROWS:
            return None
        outputs = self._parts[SCORE].run_cells(cells)
        return None if outputs is None else self._named(outputs)

    def _named(self, outputs: Outputs) -> Scores:
        """What `score` gives for outputs of its program."""
        scores = dict(zip(self.outputs, outputs.arrays, strict=True))
        return outputs.columns(scores if self.calibration is None else self.calibration.apply(scores))

    def raw_outputs(self, name: str, rows: Rows) -> Scores:
        """The outputs of one program, "score" or a tower, without calibration."""
        outputs = self._run(name, rows)
        return outputs.columns(dict(zip(self.manifest.programs[name].outputs, outputs.arrays, strict=True)))

    def _run(self, name: str, rows: Rows) -> Outputs:
        part = self._parts[name]
        if rows.num_rows <= CHUNK_ROWS:
            return part.run(rows) if rows.num_rows else self._none[name]
        pieces = []
        for start in range(0, rows.num_rows, CHUNK_ROWS):
            try:
                pieces.append(part.run(rows.slice(start, CHUNK_ROWS)))
            except BadRowsError as error:
                raise BadRowsError(error.faults, start) from None
        return join_outputs(pieces)

    def score_candidates(self, user: Rows, items: Rows) -> Scores:
        """The predictions of one user's row with each of the items' rows.

        Features that read columns of `user` alone are encoded, looked up and pooled once; a feature may
        also read columns of both. Bad rows are counted as in `items`; a bad value of the user is row 0.
        """
        if user.num_rows != 1:
            raise DataError(f"user must be one row, got {user.num_rows}")
        user, items = _as_table(user), _as_table(items)
        if items.num_rows == 0:
            return self._named(self._none[SCORE])
        part = self._parts[SCORE]
        pieces = []
        for start in range(0, items.num_rows, CHUNK_ROWS):
            try:
                pieces.append(part.run_candidates(user, items.slice(start, CHUNK_ROWS)))
            except BadRowsError as error:
                raise BadRowsError(error.faults, start) from None
        return self._named(join_outputs(pieces))

    def embed(self, rows: Rows, tower: str) -> npt.NDArray[np.float32]:
        """The vectors of one tower, [rows, dim] (or [rows, interests, dim]), from its features' columns."""
        outputs = self._run(self._tower(tower), rows)
        if outputs.lengths is not None and (wrong := np.flatnonzero(outputs.lengths != 1)).size:
            feature, count = self.manifest.programs[tower].lists, int(outputs.lengths[wrong[0]])
            raise DataError(
                f"feature {feature}: row {wrong[0]} has {count} items; write one a row for the {tower} tower"
            )
        return outputs.arrays[0]

    def tower_schema(self, tower: str) -> pa.Schema:
        """The columns that `embed` reads for a tower."""
        columns = self._parts[self._tower(tower)].encoder.columns
        return pa.schema([self.schema.field(name) for name in columns])

    def _tower(self, tower: str) -> str:
        if tower not in self.towers:
            known = ", ".join(self.towers) or "none: it is not a two-tower model"
            raise DataError(f"{self.path}: no tower '{tower}' (has: {known}){tower_hint(tower, self.towers)}")
        return tower

    def explain(self, rows: Rows) -> dict[str, dict[str, Column]]:
        """What each feature adds to each output: {output: {feature: score − score without it, [rows]}}.

        Without a feature means that its columns are null; members of a sequence are left out together.
        NaN where a feature has no default and so cannot be left out.
        """
        return explain(self, rows, self._parts[SCORE].features)

    def _check_golden(self, *, compare: bool) -> dict[str, Outputs]:
        """Score the golden rows again; returns the outputs of no rows, by program."""
        none, expected = {}, _read_arrow(self.path / GOLDEN_SCORES)
        for name, part in self._parts.items():
            try:
                outputs = part.run(self.golden)
            except DataError as error:
                raise BundleError(f"{self.path}: cannot score its golden rows ({error})") from error
            # Calibration may be steep, so that what differs little before it differs much after: the program
            # is compared before it, and the maps by what they make of the same scores.
            maps = self.calibration.maps if name == SCORE and self.calibration is not None else {}
            for output, values in zip(part.record.outputs, outputs.arrays, strict=True):
                wanted = _golden(expected, RAW + output if output in maps else output, values.shape)
                pairs = [(values, wanted)]
                if output in maps:
                    mapped = self.calibration.apply({output: wanted})[output]  # type: ignore[union-attr]
                    pairs.append((mapped, _golden(expected, output, values.shape)))
                far = max(float(np.nanmax(np.abs(a - b), initial=0.0)) for a, b in pairs)
                near = [np.allclose(a, b, _RELATIVE, _ABSOLUTE, equal_nan=True) for a, b in pairs]
                if compare and not all(near):
                    raise BundleError(
                        f"{self.path}: '{output}' of its golden rows differs by {far:.2g} from what it was "
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


def _each(lengths: Mapping[str, npt.NDArray[Any]], count: int) -> dict[str, npt.NDArray[Any]]:
    """Lengths of one row as those of `count` equal ones."""
    return {name: np.tile(values, count) for name, values in lengths.items()}


def _one_batch(rows: Rows) -> pa.RecordBatch | None:
    """Rows as one batch; None where their columns lie in several pieces."""
    if isinstance(rows, pa.RecordBatch):
        return rows
    batches = rows.to_batches()
    return batches[0] if len(batches) == 1 else None


def _as_table(rows: Rows) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])


def _columns(feature: Feature) -> set[str]:
    """The columns that a feature reads, itself or through others."""
    return set(feature.columns).union(*(_columns(needed) for needed in feature.needs))


def _loaded(path: str, threads: int, verify: bool, raw_scores: bool = False) -> Scorer:
    return Scorer.load(path, threads=threads, verify=verify, raw_scores=raw_scores)


def _features(folder: Path) -> list[Feature]:
    """The features of a bundle's config; the files that they read are the bundle's."""
    try:
        config = load_config(folder / CONFIG)
        for item in config.feature_configs:
            for file in named_files(item):
                file.move(str(folder / file.path))
        return features_of(config)
    except ConfigError as error:
        raise BundleError(f"{folder / CONFIG}: {error}") from error


def _read_arrow(path: Path) -> pa.Table:
    try:
        return pa.ipc.open_file(path).read_all()
    except (OSError, pa.ArrowException) as error:
        raise BundleError(f"{path}: cannot be read ({error}); copy the bundle again") from error
