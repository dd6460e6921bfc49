"""The checkpoints of a model_dir: saving in the background, keeping, finding the newest whole one."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from recgrad.errors import CheckpointError, whole_path
from recgrad.training.checkpoint.files import dump_json, parse_json, read_bytes
from recgrad.training.checkpoint.folder import verify_checkpoint, write_checkpoint
from recgrad.training.checkpoint.manifest import FOLDER_NAME, MANIFEST_NAME
from recgrad.training.checkpoint.ranks import Ranks, write_together
from recgrad.training.checkpoint.snapshot import Snapshot
from recgrad.training.checkpoint.staging import remove_folder, remove_leftovers, write_file_atomically

BEST_NAME = "best_checkpoint.json"
MAX_BEST_BYTES = 1 << 16
NICENESS = 5
"""How much nicer than others the thread is that copies and writes: a quarter of a core is left to it where
all are busy. With 10 steps were hardly faster, and beside other programs a save would take longer."""

_PREFIX = "model.ckpt-"
_log = logging.getLogger(__name__)


def step_aside() -> None:
    """Let the threads of training steps go before this one; Linux has a priority for each thread."""
    if sys.platform == "linux":
        own = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + NICENESS)


class CheckpointManager:
    """Saves to and finds checkpoints in `model_dir/model.ckpt-<step>`.

    Args:
        model_dir: where the checkpoints lie; made on the first save.
        keep_max: how many to keep, the newest; 0 keeps all. The best one is kept beyond that.
        rank: number of this process among those that save together.
        world_size: how many they are. Each calls `save` at the same steps with its own shards of
            the tables; the tree is rank 0's. Rank 0 alone removes and marks checkpoints.
        token: of this start of the run: letters, digits, - and _, the same on all ranks and never
            used before, so that what a killed run left is not taken for this one's.
        timeout_secs: a save fails when another rank gives no sign of life for so long.
    """

    def __init__(
        self,
        model_dir: Path | str,
        *,
        keep_max: int = 0,
        rank: int = 0,
        world_size: int = 1,
        token: str = "",
        timeout_secs: float = 600.0,
    ) -> None:
        if keep_max < 0:
            raise ValueError(f"keep_max must be at least 0, got {keep_max}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be in 0 … {world_size - 1}, got {rank}")
        if world_size > 1 and not re.fullmatch("[A-Za-z0-9_-]{1,64}", token, re.ASCII):
            raise ValueError(f"several ranks need a token of 1 to 64 letters, digits, - and _, got {token!r}")
        if not timeout_secs > 0:
            raise ValueError(f"timeout_secs must be above 0, got {timeout_secs}")
        self.model_dir = Path(model_dir)
        self.keep_max = keep_max
        self._ranks = Ranks(rank, world_size, token, timeout_secs)
        self._last_try = (-1, 0)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint", initializer=step_aside)
        self._pending: Future[None] | None = None
        self._pending_step: int | None = None
        self._written_step = -1
        self._lock = threading.Lock()

    def path(self, step: int) -> Path:
        """The folder of a step's checkpoint."""
        return self.model_dir / f"{_PREFIX}{step}"

    def save(self, snapshot: Snapshot, *, block: bool = False) -> None:
        """Write a snapshot in the background; the caller must not change its memory any more.

        Waits for a save that is still under way. A save that failed, on any rank, is raised
        here, by the next `save` or `wait`, and this snapshot is then not written.
        """
        self.wait()
        self._pending_step = snapshot.step
        self._pending = self._pool.submit(self._write, snapshot)
        if block:
            self.wait()

    def wait(self) -> None:
        """Return when nothing is being written; raises CheckpointError if the last save failed.

        With several ranks, it returns on each when rank 0 has published the checkpoint.
        """
        if self._pending is None:
            return
        error = self._pending.exception()
        step, self._pending, self._pending_step = self._pending_step, None, None
        if isinstance(error, CheckpointError):
            raise error
        if error is not None:
            raise CheckpointError(
                f"{self.model_dir / f'{_PREFIX}{step}'}: the checkpoint could not be written ({error!r})"
            ) from error

    def give_up(self) -> None:
        """Wait for no other rank any more, because the run ends here with an error.

        A save that is under way fails, on the other ranks as well if this is rank 0. Without
        this, a process could not end before the timeout.
        """
        self._ranks.ended.set()

    def steps(self) -> list[int]:
        """The steps that have a checkpoint folder, ascending; whole or damaged."""
        if not self.model_dir.is_dir():
            return []
        matches = (
            FOLDER_NAME.fullmatch(entry.name) for entry in os.scandir(self.model_dir) if entry.is_dir()
        )
        return sorted(int(match[1]) for match in matches if match)

    def latest(self, doing: Callable[[str], None] | None = None) -> Path | None:
        """The newest whole checkpoint; None if there is none at all.

        Every byte of a candidate is compared with its checksums. One that is damaged is named
        in a warning, and the one before it is tried. `doing` is told now and then how far it has come.

        Raises:
            CheckpointError: there are checkpoints, but all are damaged.
        """
        self.wait()
        while True:
            problems = []
            for step in reversed(self.steps()):
                path = self.path(step)
                try:
                    verify_checkpoint(path, doing=doing)
                except CheckpointError as error:
                    if not path.is_dir():
                        break  # Another process has just removed it, for it has written newer ones.
                    problems.append(str(error))
                    _log.warning("%s; trying the checkpoint before it", error)
                else:
                    return path
            else:
                break
        if problems:
            raise CheckpointError("\n".join([f"{self.model_dir}: no checkpoint is whole", *problems]))
        return None

    def best(self) -> int | None:
        """The step that was last marked best, or None."""
        path = self.model_dir / BEST_NAME
        if not path.is_file():
            return None
        content = parse_json(read_bytes(path, MAX_BEST_BYTES), str(path))
        step = content.get("step") if isinstance(content, dict) else None
        if type(step) is not int:
            raise CheckpointError(f"{path}: names no step; delete the file to forget the best checkpoint")
        return step

    def mark_best(self, step: int) -> None:
        """Keep this step's checkpoint, written or being written, until another one is best.

        Only rank 0 does something.
        """
        if self._ranks.rank:
            return
        if step != self._pending_step and step not in self.steps():
            raise CheckpointError(f"{self.path(step)}: cannot be marked best, there is no such checkpoint")
        with self._lock:
            try:
                self.model_dir.mkdir(parents=True, exist_ok=True)
                write_file_atomically(self.model_dir / BEST_NAME, dump_json({"step": step}) + b"\n")
            except OSError as error:
                raise CheckpointError(
                    f"{self.model_dir / BEST_NAME}: cannot be written ({error.strerror})"
                ) from error
        if self._pending is None or self._pending.done():
            self._prune(max(step, self._written_step))

    def _write(self, snapshot: Snapshot) -> None:
        ranks = self._ranks
        # Rows are copied here, while training goes on.
        snapshot = replace(snapshot, tables=list(snapshot.tables))
        try:
            self.model_dir.mkdir(parents=True, exist_ok=True)
            if ranks.rank == 0:
                # Other ranks may still look at what became of an earlier save of this run.
                self._remove_leftovers(but=f"{ranks.token}-" if ranks.token else None)
        except OSError as error:
            raise CheckpointError(
                f"{self.model_dir}: checkpoints cannot be written there ({error.strerror})"
            ) from error
        path = self.path(snapshot.step)
        if ranks.world_size == 1:
            write_checkpoint(path, snapshot)
        else:
            step, attempt = self._last_try
            self._last_try = (snapshot.step, attempt + 1 if step == snapshot.step else 0)
            write_together(path, snapshot, ranks, self._last_try[1], self._remove_leftovers)
        self._written_step = snapshot.step
        if ranks.rank == 0:
            self._prune(snapshot.step)

    def _remove_leftovers(self, but: str | None = None) -> None:
        for prefix in (_PREFIX, BEST_NAME):
            remove_leftovers(self.model_dir, prefix, but=but)

    def _prune(self, newest: int) -> None:
        """Remove all but the `keep_max` newest and the best of the checkpoints up to `newest`.

        Later ones, left by a run that was rewound, say because they are damaged, do not
        count: the run will come to their steps and replace them.
        """
        if self.keep_max == 0:
            return
        with self._lock:
            reached = [step for step in self.steps() if step <= newest]
            try:
                best = self.best()
                for step in reached[: -self.keep_max]:
                    if step != best:
                        remove_folder(self.path(step))
            except (OSError, CheckpointError) as error:
                # The new checkpoint is safe; one too many is no reason to stop a run.
                _log.warning("%s: old checkpoints are kept (%s)", self.model_dir, error)


def resolve_checkpoint(path: Path | str, doing: Callable[[str], None] | None = None) -> Path:
    """The checkpoint that `path` means: itself, or the newest whole one of a model_dir.

    `doing` is as for `CheckpointManager.latest`.
    """
    path = Path(path)
    if (path / MANIFEST_NAME).is_file() or FOLDER_NAME.fullmatch(path.name):
        return path
    if not path.is_dir():
        raise CheckpointError(f"{path}: there is no such folder{whole_path(path)}")
    found = CheckpointManager(path).latest(doing)
    if found is None:
        raise CheckpointError(f"{path}{whole_path(path)}: has no checkpoint (a folder named {_PREFIX}<step>)")
    return found
