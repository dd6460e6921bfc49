"""A folder whose parquet files are read as they come.

Files are taken in the order of their names (or times); a file counts once its footer can be read, which
writers write last, and one that is not whole yet is waited for. Each rank has a consecutive share of the rows
of each file.

A state is {"base": {"after": key, "left": {name: [[start, stop], …]}}, "last": key, "used": rows,
"file": [key, digest] or None, "rank": r, "ranks": n}: files up to `after` were done before, but for the rows
in `left`; this rank has finished its shares up to `last`, and has used some rows of its share of `file`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from recgrad.config.proto.data_pb2 import DataConfig, StreamConfig
from recgrad.data.readers.files import SourceFile, list_files
from recgrad.data.readers.parquet import ParquetReader
from recgrad.data.readers.reader import Block, Fragment
from recgrad.data.readers.streams.source import Flow, Run, Source, State
from recgrad.errors import DataError

SUFFIXES = (".parquet", ".parq", ".pq")
PATIENCE_SECS = 30.0
"""After so long a file that is not whole is spoken of."""

Key = list[Any]
Ranges = list[list[int]]

logger = logging.getLogger("recgrad.data")


class FolderSource(Source):
    """A growing folder.

    Args:
        path: a folder or a glob.
        data: how to read.
        rank, ranks: which share of each file's rows.
        bounded: end with the files that are there at the time of opening.
    """

    kind = "folder"

    def __init__(self, path: str, data: DataConfig, *, rank: int, ranks: int, bounded: bool) -> None:
        self.name = path
        self._path = path
        self._data = data
        self._rank, self._ranks = rank, ranks
        self._bounded = bounded
        self.files: list[str] = []
        self._root = _root(path)
        first = self._first(wait=not bounded)
        self.schema = first.schema
        self.coded_columns = first.coded_columns

    def start(self) -> State:
        """Before the first file."""
        return self._state({"after": None, "left": {}})

    def resume(self, states: Sequence[State]) -> State:
        """Where this rank stopped; what is left of all ranks is dealt again where their number changed."""
        if len(states) == self._ranks:
            return dict(states[self._rank])
        return self._state(self._deal(states))

    def open(self, state: State, columns: Sequence[str]) -> FolderFlow:
        """Read from a state on."""
        return FolderFlow(
            self, state, list(columns), poll_secs=self._data.stream.poll_secs, bounded=self._bounded
        )

    def listing(self) -> list[tuple[Key, SourceFile]]:
        """The files that are there now, in order."""
        try:
            found = list_files(self._path, SUFFIXES)
        except DataError:
            if os.path.isdir(self._root):
                return []
            raise
        by_time = self._data.stream.file_order == StreamConfig.MTIME
        keyed = []
        for source in found:
            try:
                own = [self._modified(source)] if by_time else []
            except FileNotFoundError:
                continue
            keyed.append(([*own, os.path.relpath(source.path, self._root)], source))
        return sorted(keyed, key=lambda pair: pair[0])

    def read_file(self, source: SourceFile) -> ParquetReader | None:
        """A reader of one file; None where it is not whole yet."""
        try:
            reader = ParquetReader(source.path, self._data)
        except DataError:
            return None
        reader.coded_columns = getattr(self, "coded_columns", reader.coded_columns)
        return reader

    def share(self, base: State, key: Key, num_rows: int, rank: int, ranks: int) -> Ranges:
        """The rows of a file that a rank of `ranks` has."""
        name = key[-1]
        whole: Ranges = [[0, num_rows]]
        if base["after"] is not None and key <= base["after"]:
            whole = base["left"].get(name, [])
        return cut_ranges(whole, rank, ranks)

    def _state(self, base: State) -> State:
        return {
            "base": base,
            "last": None,
            "file": None,
            "used": 0,
            "rank": self._rank,
            "ranks": self._ranks,
        }

    def _deal(self, states: Sequence[State]) -> State:
        """The base of a run with another number of ranks."""
        base, ranks = states[0]["base"], len(states)
        begun = [state["file"][0] if state["file"] else state["last"] for state in states]
        after = max((key for key in begun if key is not None), default=None)
        if after is None or (base["after"] is not None and after < base["after"]):
            after = base["after"]
        left: dict[str, Ranges] = {}
        there = {key[-1]: (key, source) for key, source in self.listing()}
        for name, (key, source) in there.items():
            earlier = base["after"] is not None and key <= base["after"]
            if after is None or key > after or (earlier and name not in base["left"]):
                continue
            reader = self.read_file(source)
            if reader is None:
                raise DataError(f"data: {name} was read before and cannot be read now; put it back")
            ranges: Ranges = []
            for rank, state in enumerate(states):
                own = self.share(base, key, reader.num_rows, rank, ranks)
                if state["file"] is not None and state["file"][0] == key:
                    own = drop_rows(own, state["used"])
                elif state["last"] is not None and key <= state["last"]:
                    own = []
                ranges += own
            if ranges:
                left[name] = ranges
        for name in base["left"]:
            if name not in there:
                raise DataError(f"data: {name} was not read to its end and is not there now; put it back")
        return {"after": after, "left": left}

    def _first(self, *, wait: bool) -> ParquetReader:
        """The first whole file, which says the columns."""
        said = False
        while True:
            for _, source in self.listing():
                reader = self.read_file(source)
                if reader is not None and reader.num_rows:
                    return reader
            if not wait:
                raise DataError(f"data: '{self._path}' has no whole parquet file yet; check the path")
            if not said:
                logger.info("%s has no whole parquet file yet; waiting for the first", self._path)
                said = True
            time.sleep(max(self._data.stream.poll_secs, 0.01))

    @staticmethod
    def _modified(source: SourceFile) -> int:
        if not source.local:
            raise DataError("data: stream.file_order: MTIME is for local folders; use NAME")
        return os.stat(source.path).st_mtime_ns


class FolderFlow(Flow):
    """Rows of a growing folder's files, from a state on.

    Args:
        source: the folder.
        state: where to begin.
        columns: to read.
        poll_secs: between two looks at the folder.
        bounded: end with the files that are there now.
    """

    def __init__(
        self, source: FolderSource, state: State, columns: list[str], *, poll_secs: float, bounded: bool
    ) -> None:
        self._source = source
        self._columns = columns
        self._state = state
        self._poll_secs = poll_secs
        self._names = {key[-1] for key, _ in source.listing()} if bounded else None
        self._passed: set[str] = set()
        self._looks = 0
        self._last: Key | None = state["last"]
        self._blocks: Iterator[Run] = iter(())
        self._looked = 0.0
        self._unread_since: tuple[str, float] | None = None
        self._ended = False
        self._resumes = state["file"] is not None

    @property
    def ended(self) -> bool:
        return self._ended

    def poll(self, timeout: float) -> Run | None:
        until = time.monotonic() + timeout
        while True:
            run = next(self._blocks, None)
            if run is not None:
                return run
            if not self._next_file():
                if self._ended or time.monotonic() >= until:
                    return None
                time.sleep(min(max(until - time.monotonic(), 0.0), 0.05))

    def after(self, state: State, run: Run, rows: int) -> State:
        key, digest, used, ends = run.marks
        if ends and rows == run.block.table.num_rows:
            return {**state, "last": key, "file": None, "used": 0}
        return {**state, "file": [key, digest], "used": used + rows}

    def close(self) -> None:
        self._blocks = iter(())

    def _next_file(self) -> bool:
        """Open the next file in order; False where there is none yet."""
        now = time.monotonic()
        if self._looked and now - self._looked < self._poll_secs:
            return False
        listing = self._source.listing()
        self._say_late([key for key, _ in listing])
        for key, file in listing:
            if not self._wanted(key):
                continue
            reader = self._source.read_file(file)
            if reader is None:
                self._say_unread(key[-1], now)
                break
            self._open(key, reader)
            self._looked = 0.0
            return True
        else:
            self._ended = self._names is not None
        if self._resumes:
            name = self._state["file"][0][-1]
            raise DataError(f"data: {name} was not read to its end and is not there now; put it back")
        self._looked = now
        return False

    def _wanted(self, key: Key) -> bool:
        base, name = self._state["base"], key[-1]
        if self._names is not None and name not in self._names:
            return False
        if self._resumes:
            return bool(key == self._state["file"][0])
        if self._last is not None and key <= self._last:
            return False
        return base["after"] is None or key > base["after"] or name in base["left"]

    def _open(self, key: Key, reader: ParquetReader) -> None:
        digest = reader.identities[0].digest
        state, used = self._state, 0
        if self._resumes:
            if state["file"][1] != digest:
                raise DataError(
                    f"data: {key[-1]} changed since its first {state['used']} rows were trained on; put "
                    "the old file back"
                )
            used, self._resumes = state["used"], False
        self._last = key
        index = len(self._source.files)
        self._source.files.append(key[-1])
        _check_schema(reader, self._source.schema, self._columns, key[-1])
        own = self._source.share(state["base"], key, reader.num_rows, state["rank"], state["ranks"])
        self._blocks = self._read(key, digest, reader, drop_rows(own, used), used, index)

    def _read(
        self, key: Key, digest: str, reader: ParquetReader, ranges: Ranges, used: int, index: int
    ) -> Iterator[Run]:
        """The rows of some ranges; the run that ends the share says so, also where it has no rows."""
        held: Run | None = None
        for start, stop in ranges:
            for fragment in reader.fragments:
                low, high = max(start, fragment.first_row), min(stop, fragment.first_row + fragment.num_rows)
                if low >= high:
                    continue
                for block in self._rows(reader, fragment, low, high):
                    if held is not None:
                        yield held
                    held = Run(replace(block, file=index), (key, digest, used, False))
                    used += block.table.num_rows
        if held is None:
            empty = self._source.schema.empty_table().select(self._columns)
            held = Run(Block(empty, file=index), (key, digest, used, True))
        yield replace(held, marks=(*held.marks[:3], True))

    def _rows(self, reader: ParquetReader, fragment: Fragment, low: int, high: int) -> Iterator[Block]:
        at = fragment.first_row
        for block in reader.read(fragment, self._columns):
            size = block.table.num_rows
            start, stop = max(low - at, 0), min(high - at, size)
            if stop > start:
                yield replace(block, first_row=at).slice(start, stop)
            at += size

    def _say_unread(self, name: str, now: float) -> None:
        if self._unread_since is None or self._unread_since[0] != name:
            self._unread_since = (name, now)
        elif now - self._unread_since[1] > PATIENCE_SECS:
            self._unread_since = (name, now + 20 * PATIENCE_SECS)
            logger.warning(
                "%s is no whole parquet file yet and is waited for; remove it if nobody writes it", name
            )

    def _say_late(self, keys: Sequence[Key]) -> None:
        """Files that come before one that was read are left out, which the user should know."""
        for key in keys:
            last = self._last
            if last is not None and key < last and self._looks and key[-1] not in self._passed:
                logger.warning(
                    "%s came after %s was read and is left out: files must come in the order of their names",
                    key[-1],
                    last[-1],
                )
            self._passed.add(key[-1])
        self._looks += 1


def cut_ranges(ranges: Ranges, part: int, parts: int) -> Ranges:
    """Part `part` of `parts` consecutive ones, whose sizes differ by one row at most."""
    total = sum(stop - start for start, stop in ranges)
    low, high = total * part // parts, total * (part + 1) // parts
    return drop_rows(take_rows(ranges, high), low)


def take_rows(ranges: Ranges, rows: int) -> Ranges:
    """The first `rows` rows."""
    taken = []
    for start, stop in ranges:
        size = min(stop - start, rows)
        if size > 0:
            taken.append([start, start + size])
        rows -= size
    return taken


def drop_rows(ranges: Ranges, rows: int) -> Ranges:
    """Without the first `rows` rows."""
    left = []
    for start, stop in ranges:
        size = min(stop - start, rows)
        if start + size < stop:
            left.append([start + size, stop])
        rows -= size
    return left


def _check_schema(reader: ParquetReader, schema: pa.Schema, columns: Sequence[str], name: str) -> None:
    reader.check_columns(columns)
    for column in columns:
        kind, first = reader.schema.field(column).type, schema.field(column).type
        if kind != first:
            raise DataError(
                f"data: column '{column}' is {kind} in {name} but {first} in the files before; write all "
                "with one type"
            )


def _root(path: str) -> str:
    """The folder that names are told from."""
    parts = os.path.expanduser(path).split("/")
    fixed = next((i for i, part in enumerate(parts) if any(sign in part for sign in "*?[")), len(parts))
    return os.path.abspath("/".join(parts[:fixed]) or "/")
