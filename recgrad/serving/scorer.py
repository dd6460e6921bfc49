"""Scores rows with a bundle: the features of training, tables from mapped files, a dense program; no torch.

    scorer = Scorer.load("bundle")
    scorer.score(table)                    # {"probs": float32 [rows]}, the columns of `recgrad predict`
    scorer.score_candidates(user, items)   # one user's row and many items' rows
    scorer.embed(table, "item")            # vectors of one tower

A scorer holds no state between calls, so any number of threads may share one; it is pickled by its path.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.calibration.stored import CALIBRATION, Calibration, read_calibration
from recgrad.config import load_config
from recgrad.config.files import named_files
from recgrad.data.encoded import Encoded
from recgrad.data.faults import Faults
from recgrad.data.features.base import Feature
from recgrad.data.features.build import features_of
from recgrad.data.features.spec import FeatureSpec
from recgrad.data.list_column import Column
from recgrad.data.plain.encoder import Cells
from recgrad.embedding.mapped.tables import MappedTables
from recgrad.errors import BundleError, ConfigError, DataError
from recgrad.retrieval.tower_names import tower_hint
from recgrad.serving.explain import explain
from recgrad.serving.golden import check_golden, read_arrow
from recgrad.serving.manifest import CONFIG, GOLDEN, SCORE, Manifest, read_manifest
from recgrad.serving.outputs import Outputs, join_outputs
from recgrad.serving.part import BadRowsError, Buffers, Part, Rows
from recgrad.serving.verify import checking

Scores = dict[str, Column]
"""Predictions by name: float32 [rows] or [rows, classes], or lists of them."""
CHUNK_ROWS = 4096
"""Rows that are scored at once: more need more memory, and are no faster."""


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
                name: Part(self.path, record, features, tables, threads)
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
        self.golden = read_arrow(self.path / GOLDEN)
        self.schema = self.golden.schema
        self._none = check_golden(self.path, self.golden, self._parts, self.calibration, compare=golden)
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

    def encode(self, rows: Rows) -> Encoded:
        """The features of rows that `score` would compute with; they must be good ones."""
        faults = Faults()
        encoded = self._parts[SCORE].encoder.encode_table(rows, faults)
        if faults:
            raise BadRowsError(faults)
        return encoded

    def score_cells(self, cells: Cells) -> Scores | None:
        """As `score`, of rows that were read from JSON; None where they must become a table first."""
        if not 0 < cells.size <= CHUNK_ROWS:
            return None
        outputs = self._parts[SCORE].run_cells(cells)
        return None if outputs is None else self._named(outputs)

    def buffers(self, cells: Cells) -> Buffers:
        """Memory for `prepare`, for as many rows as cells have room for."""
        return self._parts[SCORE].buffers(cells)

    def prepare(self, cells: Cells, buffers: Buffers) -> Callable[[], Scores | None] | None:
        """What `score_cells` does, for cells that lie in the same place at every call; one thread at a time.

        Returns:
            None where that cannot be. What it returns gives None where rows must become a table first.
        """
        part = self._parts[SCORE].prepare(cells, buffers)
        if part is None:
            return None

        def score() -> Scores | None:
            outputs = part.run()
            if outputs is None or self.calibration is None:
                return None if outputs is None else dict(zip(self.outputs, outputs))
            return self._named(Outputs(outputs))

        return score

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


def _as_table(rows: Rows) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])


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
