"""One checkpoint written by several processes that share a file system and nothing else.

    .model.ckpt-7.writing-<token>-0/     made and locked by rank 0
        rank-00001/00000.safetensors     a shard of rank 1
        rank-00001.json                  what rank 1 has written; appears when all of it is on the disk
        tree.json …                      of rank 0

Rank 0 waits for the records of all, checks that the shards make whole tables, moves them to their
places, writes the manifest and gives the folder its name. The others keep the folder open: when
the final name leads to the folder they know, it is published; when the hidden name leads
elsewhere and the final one, too, it was given up. The names of the folder and the content of the
records have the run's token, so what a killed run left is never taken for this run's.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recgrad.errors import CheckpointError, LostRankError
from recgrad.training.checkpoint.files import FileRecord, dump_json, parse_json, require
from recgrad.training.checkpoint.folder import not_written, write_manifest, write_tree
from recgrad.training.checkpoint.manifest import TableEntry, shard_path
from recgrad.training.checkpoint.shards import (
    Shard,
    by_table,
    describe_shard,
    join_shards,
    read_row_ids,
    write_rows,
)
from recgrad.training.checkpoint.snapshot import Snapshot
from recgrad.training.checkpoint.staging import (
    empty_folder,
    failed_folder,
    fsync_tree,
    shared_folder,
    shared_staged_folder,
    write_file_atomically,
)

FAILURE_NAME = "failure.txt"

_LOST = "may have died"
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.2
_LOOKS = 8  # times that a wait looks for signs of life


@dataclass(frozen=True)
class Ranks:
    """This process among those that write together.

    Attributes:
        rank: its number.
        world_size: how many there are.
        token: of this start of the run, the same on all ranks and never used before.
        timeout_secs: how long to wait while nothing comes from those that are waited for.
        ended: set when this process will not go on; it then waits for nobody.
    """

    rank: int
    world_size: int
    token: str
    timeout_secs: float
    ended: threading.Event = field(default_factory=threading.Event)

    def save_name(self, attempt: int) -> str:
        """Tells one save of a step from all others."""
        return f"{self.token}-{attempt}"


def write_together(
    path: Path, snapshot: Snapshot, ranks: Ranks, attempt: int, all_here: Callable[[], None]
) -> None:
    """Write this rank's part of a checkpoint, and return when the whole is published.

    Args:
        path: the checkpoint's folder.
        snapshot: the tree, which counts on rank 0 only, and this rank's shards of the tables.
        ranks: who writes.
        attempt: how often this run has saved this step before.
        all_here: called on rank 0 when all ranks have done their parts of this save, so that
            none of them waits for an earlier one.

    Raises:
        CheckpointError: any rank failed or did not come; nothing is published.
    """
    if ranks.rank == 0:
        _lead(path, snapshot, ranks, attempt, all_here)
    else:
        _follow(path, snapshot, ranks, attempt)


def _lead(path: Path, snapshot: Snapshot, ranks: Ranks, attempt: int, all_here: Callable[[], None]) -> None:
    name = ranks.save_name(attempt)
    try:
        with shared_staged_folder(path, name, FAILURE_NAME, lambda e: str(_failure(path, e))) as staging:
            shards = _write_shards(staging, snapshot, ranks, lambda: None)
            files = write_tree(staging, snapshot)
            shards += _await_records(staging, snapshot.step, ranks)
            all_here()
            tables = _arrange(staging, shards, files)
            for rank in range(ranks.world_size):
                os.rmdir(staging / _rank_folder(rank))
                if rank:
                    os.unlink(staging / _record_name(rank))
            write_manifest(staging, snapshot, files, tables)
    except FileExistsError as error:
        raise not_written(
            path, f"token '{ranks.token}' was used before; every start of a run needs another"
        ) from error
    except (OSError, CheckpointError) as error:
        raise _failure(path, error) from error


def _failure(path: Path, error: BaseException) -> CheckpointError:
    """What rank 0 and through it all others say."""
    if isinstance(error, CheckpointError):
        return not_written(path, str(error), type(error))
    reason = error.strerror if isinstance(error, OSError) else None
    return not_written(path, f"rank 0: {reason or repr(error)}")


def _follow(path: Path, snapshot: Snapshot, ranks: Ranks, attempt: int) -> None:
    staging = shared_folder(path, ranks.save_name(attempt))
    with _joined(path, staging, ranks) as identity:

        def check_resumes() -> None:
            if (staging / FAILURE_NAME).exists() or _identity(staging) != identity:
                raise _given_up(path, staging)

        try:
            shards = _write_shards(staging, snapshot, ranks, check_resumes)
            record = {"step": snapshot.step, "token": ranks.token, "world_size": ranks.world_size}
            _write_record(staging, ranks.rank, {**record, "shards": [shard.to_json() for shard in shards]})
        except (OSError, CheckpointError) as error:
            check_resumes()
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            _leave_failure(staging, ranks.rank, reason)
            raise not_written(path, f"rank {ranks.rank}: {reason}") from error
        except BaseException as error:
            _leave_failure(staging, ranks.rank, repr(error))
            raise
        # Rank 0 may wait for another rank this long; its word is better than silence.
        patience = _Patience(ranks, 1.25 * ranks.timeout_secs + 1, lambda: [staging])
        while _identity(staging) == identity:
            if not patience.pause():
                raise not_written(
                    path, f"rank 0: not done within {patience.seconds:g} s, {_LOST}", LostRankError
                )
        if _identity(path) != identity:
            raise _given_up(path, staging)


@contextmanager
def _joined(path: Path, staging: Path, ranks: Ranks) -> Iterator[tuple[int, int]]:
    """Wait for rank 0's folder and keep it open, so that its identity belongs to no other one."""
    patience = _Patience(ranks, ranks.timeout_secs, list)
    while True:
        try:
            descriptor = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            break
        except FileNotFoundError:
            if failed_folder(staging).exists():
                raise _given_up(path, staging) from None
            if not os.access(path.parent, os.W_OK):
                raise not_written(path, f"rank {ranks.rank}: {path.parent} cannot be written to") from None
            if not patience.pause():
                raise not_written(
                    path, f"rank 0: not begun within {patience.seconds:g} s, {_LOST}", LostRankError
                ) from None
        except OSError as error:
            raise not_written(path, f"rank {ranks.rank}: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        yield status.st_dev, status.st_ino
    finally:
        os.close(descriptor)


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _given_up(path: Path, staging: Path) -> CheckpointError:
    for folder in (failed_folder(staging), staging):
        with suppress(OSError):
            text = (folder / FAILURE_NAME).read_text()
            return LostRankError(text) if _LOST in text else CheckpointError(text)
    return not_written(path, "rank 0 gave up the save or was killed", LostRankError)


def _write_shards(
    staging: Path, snapshot: Snapshot, ranks: Ranks, check_resumes: Callable[[], None]
) -> list[Shard]:
    """Write this rank's shards and force them to the disk."""
    folder = _rank_folder(ranks.rank)
    os.mkdir(staging / folder)
    shards = []
    for number, table in enumerate(snapshot.tables):
        check_resumes()
        file = write_rows(staging, f"{folder}/{number:05d}.safetensors", table)
        shards.append(describe_shard(table, file))
    fsync_tree(staging / folder)
    return shards


def _write_record(staging: Path, rank: int, record: dict[str, Any]) -> None:
    write_file_atomically(staging / _record_name(rank), dump_json(record))


def _leave_failure(staging: Path, rank: int, reason: str) -> None:
    """Tell rank 0, on a disk that may be full: a rename takes no space, a reason may."""
    folder = staging / _rank_folder(rank)
    empty_folder(folder)
    try:
        _write_record(staging, rank, {"failure": reason})
    except OSError:
        with suppress(OSError):
            os.rename(folder, staging / _record_name(rank))


def _await_records(staging: Path, step: int, ranks: Ranks) -> list[Shard]:
    """The shards of all other ranks, when all of them are on the disk."""
    found: dict[int, list[Shard]] = {}
    missing = list(range(1, ranks.world_size))
    patience = _Patience(
        ranks, ranks.timeout_secs, lambda: [staging / _rank_folder(rank) for rank in missing]
    )
    while missing:
        for rank in [rank for rank in missing if (staging / _record_name(rank)).exists()]:
            found[rank] = _read_record(staging / _record_name(rank), step, ranks, rank)
            missing.remove(rank)
        if missing and not patience.pause():
            names = ", ".join(f"rank {rank}" for rank in missing)
            raise LostRankError(f"{names}: not done within {patience.seconds:g} s, {_LOST}")
    return [shard for _, shards in sorted(found.items()) for shard in shards]


def _read_record(path: Path, step: int, ranks: Ranks, rank: int) -> list[Shard]:
    if path.is_dir():
        raise CheckpointError(f"rank {rank}: failed, and had no space to say why")
    record = parse_json(path.read_bytes(), str(path))
    if "failure" in record:
        raise CheckpointError(f"rank {rank}: {record['failure']}")
    expected = {"step": step, "token": ranks.token, "world_size": ranks.world_size}
    for key, value in expected.items():
        if record.get(key) != value:
            raise CheckpointError(f"rank {rank}: saves {key} {record.get(key)}, rank 0 {key} {value}")
    return [Shard.of_json(shard) for shard in record["shards"]]


def _arrange(staging: Path, shards: list[Shard], files: list[FileRecord]) -> list[TableEntry]:
    """Move the shards to where a checkpoint has them; appends their records to `files`."""
    entries = []
    for name, parts in sorted(by_table(shards).items()):
        ordered, entry = join_shards(parts, lambda shard: read_row_ids(staging, shard))
        paths = []
        for number, shard in enumerate(ordered):
            target = shard_path(name, number, len(ordered))
            size = os.stat(staging / shard.file.path).st_size
            require(size == shard.file.num_bytes, staging / shard.file.path, f"has {size} bytes, not all")
            (staging / target).parent.mkdir(parents=True, exist_ok=True)
            os.rename(staging / shard.file.path, staging / target)
            files.append(FileRecord(target, shard.file.num_bytes, shard.file.crc32))
            paths.append(target)
        entries.append(
            TableEntry(name, entry.num_rows, entry.dim, entry.touched_rows, tuple(paths), entry.columns)
        )
    return entries


class _Patience:
    """Waits that end when nothing has changed below some folders for some time."""

    def __init__(self, ranks: Ranks, seconds: float, folders: Callable[[], list[Path]]) -> None:
        self.seconds = seconds
        self._ranks = ranks
        self._folders = folders
        self._seen = self._signs()
        self._since = self._looked = time.monotonic()
        self._pause = _SHORTEST_PAUSE

    def pause(self) -> bool:
        """Sleep a little; False when it has been long enough."""
        if self._ranks.ended.wait(self._pause):
            raise CheckpointError(f"rank {self._ranks.rank}: the run has ended there")
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        now = time.monotonic()
        if now - self._looked > self.seconds / _LOOKS:
            self._looked, signs = now, self._signs()
            if signs != self._seen:
                self._seen, self._since = signs, now
        return now - self._since < self.seconds

    def _signs(self) -> list[tuple[str, int]]:
        """Names and sizes of the files."""
        found: list[tuple[str, int]] = []
        for top in self._folders():
            for folder, _, names in os.walk(top):
                for path in (os.path.join(folder, name) for name in names):
                    with suppress(OSError):
                        found.append((path, os.stat(path).st_size))
        return sorted(found)


def _rank_folder(rank: int) -> str:
    return f"rank-{rank:05d}"


def _record_name(rank: int) -> str:
    return f"rank-{rank:05d}.json"
