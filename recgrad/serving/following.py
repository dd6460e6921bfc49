"""A bundle that follows the deltas of its run.

A delta is applied when it is the next one: it is whole, undamaged, of the same stream, and its parent is
what was applied last. Rows are written between lookups, some at a time; then the dense program is exchanged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from recgrad.data.plain.encoder import Cells
from recgrad.embedding.deltas.reading import Delta
from recgrad.embedding.deltas.record import DeltaError, DeltaRecord, published, read_record
from recgrad.embedding.deltas.writing import DELETE
from recgrad.embedding.mapped.moving import MovingTables
from recgrad.errors import BundleError
from recgrad.serving.manifest import ProgramRecord
from recgrad.serving.part import Buffers
from recgrad.serving.program import OnnxProgram
from recgrad.serving.scorer import Scorer

_log = logging.getLogger("recgrad.serving")


@dataclass(frozen=True)
class Applied:
    """Where a scorer stands: the delta's number, id and step, and when its rows were taken (Unix time)."""

    number: int
    id: str
    step: int
    created: float


class FollowingScorer(Scorer):
    """A scorer whose rows and dense weights follow the deltas in a folder; one thread at a time follows.

    Args:
        path: the bundle.
        deltas: the folder.

    Raises:
        BundleError: the bundle has no stream, its programs cannot take other weights, or it is calibrated.
    """

    table_kind = MovingTables

    def __init__(self, path: str | Path, deltas: str | Path, **options: Any) -> None:
        super().__init__(path, **options)
        manifest = self.manifest
        if self.calibration is not None:
            raise BundleError(
                f"{path}: cannot follow deltas: its calibration is of step {self.calibration.step}, and "
                "deltas bring other weights; export with --raw_scores, or calibrate again and replace it"
            )
        if not manifest.stream:
            raise BundleError(
                f"{path}: cannot follow deltas: its checkpoint is of a run without "
                "train_config.delta_embedding_dump_config; export a checkpoint of a run that has it"
            )
        for record in manifest.programs.values():
            if not record.weights:
                raise BundleError(
                    f"{path}: cannot follow deltas: {record.file} does not say where its weights are; serve "
                    "without --follow, and replace the bundle instead"
                )
        self.deltas = Path(deltas)
        self.applied = Applied(manifest.delta, manifest.delta_id, manifest.step, 0.0)
        self.refused = ""
        self._bad: object = None
        self._files = {r.file: (self.path / r.file).read_bytes() for r in manifest.programs.values()}

    def prepare(self, cells: Cells, buffers: Buffers) -> None:
        """Nothing: tables and programs are replaced."""

    def follow(self) -> int:
        """Apply the deltas that are next; returns how many. What is refused is in `refused`."""
        count = 0
        while True:
            found = published(self.deltas)
            path = found.get(self.applied.number + 1)
            if path is None:
                later = [number for number in found if number > self.applied.number]
                if later and not self.refused:
                    self._wait_for_gap(min(later))
                return count
            files = _signature(path)
            if files == self._bad:
                return count
            try:
                self._apply(read_record(path))
            except DeltaError as error:
                self._bad = files  # read again when something changes
                if str(error) != self.refused:
                    _log.warning("refused a delta, what was served before stays: %s", error)
                self.refused = str(error)
                return count
            self.refused = ""
            count += 1

    def _wait_for_gap(self, number: int) -> None:
        _log.info("delta %d is there, and %d is waited for", number, self.applied.number + 1)
        self.refused = f"delta {self.applied.number + 1} is missing, and {number} is there"

    def _apply(self, record: DeltaRecord) -> None:
        manifest = self.manifest
        if record.stream != manifest.stream:
            raise DeltaError(f"{self.deltas}: delta {record.number} is of another run than the bundle")
        if record.parent != self.applied.id:
            raise DeltaError(
                f"{self.deltas}: delta {record.number} does not continue delta {self.applied.number}; export "
                "a bundle of the newest checkpoint"
            )
        tables = self._tables
        assert isinstance(tables, MovingTables)
        tables.check_delta(record)
        delta = Delta(self.deltas, record)
        dense = delta.dense()
        files = {p.file: self._patched(p, dense) for p in manifest.programs.values()}
        programs = {
            name: OnnxProgram(
                self.path / part.record.file, part.record, part.threads, files[part.record.file]
            )
            for name, part in self._parts.items()
        }
        # Ids that are gone first, so that there is room for those that have come.
        for rows in sorted(delta.parts(), key=lambda part: part.op != DELETE):
            tables.apply(rows)
        for name, program in programs.items():
            self._parts[name].program = program
        self._files = files
        self.applied = Applied(record.number, record.id, record.step, record.created)

    def _patched(self, record: ProgramRecord, dense: dict[str, Any]) -> bytes:
        """The file of a program with other weights."""
        content = bytearray(self._files[record.file])
        for place in record.weights:
            data = dense[place.name].tobytes() if place.name in dense else b""
            if len(data) != place.num_bytes:
                raise DeltaError(f"{self.deltas}: a delta has no '{place.name}' of {place.num_bytes} bytes")
            content[place.offset : place.offset + place.num_bytes] = data
        return bytes(content)

    def describe(self) -> dict[str, Any]:
        """What /v1/model says."""
        applied = self.applied
        age = max(time.time() - applied.created, 0.0) if applied.created else None
        return {"number": applied.number, "step": applied.step, "age_s": age, "refused": self.refused or None}

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a scorer that follows deltas cannot be pickled; load it where it is used")


def _signature(path: Path) -> object:
    """What changes when a file of a delta is replaced or written."""
    found = []
    for file in sorted(path.parent.glob(f"{escape(path.stem)}.*")):
        with suppress(OSError):
            state = file.stat()
            found.append((file.name, state.st_size, state.st_mtime_ns))
    return found


class DeltaThread:
    """Looks for deltas of the model that is served now.

    Args:
        current: gives it.
        every_s: between looks.
        on_applied: called with the scorer and how many were applied, or 0 where one was refused.
    """

    def __init__(
        self,
        current: Callable[[], Scorer],
        every_s: float,
        on_applied: Callable[[FollowingScorer, int], None],
    ) -> None:
        self._current, self._every_s, self._on_applied = current, every_s, on_applied
        self._ending = threading.Event()

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name="deltas", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.wait(self._every_s):
            self.look()

    def look(self) -> None:
        """Apply what has come."""
        scorer = self._current()
        assert isinstance(scorer, FollowingScorer)
        try:
            refused = scorer.refused
            count = scorer.follow()
            if count or scorer.refused != refused:
                self._on_applied(scorer, count)
        except Exception:
            _log.exception("following deltas failed")


def load_following(deltas: str) -> Callable[[Path], Scorer]:
    """What loads a bundle and brings it up to date with the deltas of a folder."""

    def load(path: Path) -> Scorer:
        scorer = FollowingScorer(path, deltas)
        scorer.follow()
        return scorer

    return load
