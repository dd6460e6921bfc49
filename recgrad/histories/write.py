"""`recgrad sequences`: from a log to files of histories.

```
log ─▶ parts of users ─▶ sort by user and time ─▶ rows of train, valid, test ─▶ parts of time ─▶ sort ─▶ files
```
One part at a time is in memory. Rows of a file are in the order of the time of what comes next, so that
training without a shuffle sees events in the order in which they happened.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from recgrad.data.hashing import hash_array
from recgrad.errors import DataError
from recgrad.histories.items import ID, Attributes, ItemCounts, write_items
from recgrad.histories.log import EventLog, LineLog
from recgrad.histories.rows import PARTS, RELEVANT, Sorted, make_table, sort_events, split_rows
from recgrad.histories.settings import HistorySettings
from recgrad.histories.spill import Spill

TIME = "__time"
_SAMPLE = 4_000_000
_GROUP = 8192  # rows of a parquet row group
_ALWAYS = (np.inf, np.inf)


@dataclass
class HistoryReport:
    """What was written.

    Attributes:
        events: of the log.
        users: of the log.
        items: of the log.
        rows: by part.
        single: users with one event, who have nothing that comes next.
        turned: events that stood in the log before an earlier one of their user.
        bounds: where valid and test begin, for the split by time.
        largest: the largest item id where ids are whole numbers, else None.
        longest: the length of the longest history.
        lengths: int64 [longest training history + 1]: how many training rows have a history so long.
    """

    events: int = 0
    users: int = 0
    items: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    single: int = 0
    turned: int = 0
    bounds: tuple[float, float] | None = None
    largest: int | None = None
    longest: int = 0
    lengths: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))


def write_histories(
    log_path: str,
    folder: str,
    settings: HistorySettings,
    *,
    lines: bool = False,
    items_path: str = "",
    beside_rows: bool = False,
) -> HistoryReport:
    """Write `train.parquet`, `valid.parquet`, `test.parquet` and `items.parquet` into a folder.

    Args:
        log_path: the log.
        folder: made if it does not exist.
        settings: what is asked for.
        lines: the log is text with one line a user.
        items_path: a table with attributes of items, by the column of items.
        beside_rows: rows have the attributes of what comes next, too.

    Raises:
        DataError: the log has no events, or something in it cannot be used.
    """
    log = (LineLog if lines else EventLog)(log_path, settings)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".sequences-", dir=target))
    try:
        return _Writer(log, work, target, settings).write(items_path, beside_rows)
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _Writer:
    def __init__(self, log: EventLog | LineLog, work: Path, target: Path, settings: HistorySettings) -> None:
        self.log, self.work, self.target, self.settings = log, work, target, settings
        self.parts = max(1, -(-log.num_events // settings.events_in_memory))
        self.report, self.items = HistoryReport(), ItemCounts(settings.item)
        self.times: list[npt.NDArray[np.float64]] = []

    def write(self, items_path: str, beside_rows: bool) -> HistoryReport:
        report, settings = self.report, self.settings
        with ExitStack() as stack:
            users = stack.enter_context(Spill(self.work, "users", self.parts))
            self._read(users)
            if settings.split == "time":
                report.bounds = self._bounds()
            spills = {
                name: stack.enter_context(Spill(self.work, name, self.parts))
                for name in (PARTS if settings.split != "none" else PARTS[:1])
            }
            cuts = self._cuts()
            for table in users.tables():
                self._part(sort_events(table, settings), spills, cuts)
            items = self.items.table
            attributes = Attributes(items_path, items.column(ID), settings)
            if beside_rows:
                attributes.check_free(items_path, self._written)
            for name, spill in spills.items():
                tables = _by_time(spill)
                if beside_rows:
                    tables = (attributes.beside(table, settings.item) for table in tables)
                report.rows[name] = _write_rows(self.target / f"{name}.parquet", tables)
        report.items = len(items)
        report.largest = self.items.largest()
        if not report.rows["train"]:
            raise DataError(
                f"sequences: no user has two events to train on ({report.users:,} users, "
                f"{report.events:,} events), besides those held back; --split none holds back none"
            )
        write_items(self.target / "items.parquet", items, attributes, settings)
        return report

    @property
    def _written(self) -> set[str]:
        """The names of all columns of rows."""
        settings = self.settings
        histories = {f"{settings.name}__{name}" for name in settings.of_events}
        return {*settings.columns, *histories, RELEVANT}

    def _read(self, users: Spill) -> None:
        step = max(1, self.log.num_events // _SAMPLE)
        for table in self.log.blocks():
            self.report.events += table.num_rows
            if self.settings.time:
                self.times.append(table.column(self.settings.time).to_numpy()[::step])
            users.add(table, self._part_of(table.column(self.settings.user)))

    def _part_of(self, users: pa.ChunkedArray) -> npt.NDArray[np.int64]:
        if self.parts == 1:
            return np.zeros(len(users), np.int64)
        array = users.combine_chunks()
        array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
        return (hash_array(array) % np.uint64(self.parts)).astype(np.int64)

    def _bounds(self) -> tuple[float, float]:
        """When the validation and the test begin."""
        settings = self.settings
        times = np.sort(np.concatenate(self.times))

        def at(share: float) -> float:
            return float(times[min(int(share * len(times)), len(times) - 1)]) if share < 1 else float("inf")

        test = settings.test_from if settings.test_from is not None else at(1 - settings.test_share)
        share = 1 - settings.test_share - settings.valid_share
        valid = settings.valid_from if settings.valid_from is not None else at(share)
        return min(valid, test), test

    def _cuts(self) -> npt.NDArray[np.float64]:
        """Times between the parts that rows are sorted in."""
        if self.parts == 1:
            return np.zeros(0)
        shares = np.arange(1, self.parts) / self.parts
        if not self.settings.time:  # the place in the log takes the place of time
            return shares * self.log.num_events
        return np.quantile(np.concatenate(self.times), shares)

    def _part(self, events: Sorted, spills: dict[str, Spill], cuts: npt.NDArray[np.float64]) -> None:
        report, settings = self.report, self.settings
        report.users += len(events.starts)
        report.single += int((events.counts == 1).sum())
        report.turned += events.turned
        rows = split_rows(events, settings, report.bounds or _ALWAYS)
        self.items.add(events, rows["train"])
        report.lengths = _added(report.lengths, np.bincount(rows["train"].end - rows["train"].begin))
        for name, spill in spills.items():
            own = rows[name]
            report.longest = max(report.longest, int((own.end - own.begin).max(initial=0)))
            times = events.times[own.next]
            table = make_table(events, own, settings).append_column(TIME, pa.array(times))
            spill.add(table, np.searchsorted(cuts, times, side="right"))


def _added(some: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The sum of two counts by number, of which one may end earlier."""
    size = max(len(some), len(others))
    return np.pad(some, (0, size - len(some))) + np.pad(others, (0, size - len(others)))


def _by_time(spill: Spill) -> Iterator[pa.Table]:
    """Rows by time, those of one time in the order that they came in."""
    for table in spill.tables():
        index = np.argsort(table.column(TIME).to_numpy(), kind="stable")
        yield table.take(pa.array(index)).drop_columns([TIME])


def _write_rows(path: Path, tables: Iterator[pa.Table]) -> int:
    count, writer = 0, None
    try:
        for table in tables:
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table, row_group_size=_GROUP)
            count += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return count
