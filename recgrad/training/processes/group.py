"""Several processes of a run: how they meet, watch each other, tell of failures and part."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from recgrad.errors import ProcessError, RecgradError
from recgrad.training.processes.blame import comes_from_a_peer, find_cause, first_line
from recgrad.training.processes.board import ANSWER_SECS, MEETING, Board, Failure, connect, known
from recgrad.training.processes.device import backend_of, choose_device
from recgrad.training.processes.environment import Environment, read_environment
from recgrad.training.processes.heartbeat import (
    EVERY_SECS,
    MANY_EVERY_SECS,
    MANY_RANKS,
    Heartbeat,
    host_identity,
    is_gone,
    watch_launcher_alone,
)
from recgrad.training.processes.processes import DEFAULT_TIMEOUT_SECS, Processes

LEAVE_SECS = 5.0
LOOK_SECS = 3.0
LAUNCHER_SECS = 2.0
INTERRUPTED = 130
TERMINATED = 143


_opened: list[Processes] = []
"""The group of this process, while there is one."""


class _Group(Processes):
    """Processes with a process group, a notice board and signs of life."""

    def __init__(self, environment: Environment, timeout_secs: float) -> None:
        super().__init__(environment)
        self.timeout_secs = timeout_secs
        # A launcher's store is there before the ranks are; rank 0 may come late with one of its own.
        wait_secs = min(timeout_secs, 60.0) if environment.agent_store else timeout_secs
        self._store = connect(environment, wait_secs)
        self._turns = 0
        self._hosts_store = self.is_main and not environment.agent_store
        self._board = Board(self._store, self.world_size, self.restarts)
        self._heartbeat = Heartbeat(
            self._pulse,
            self._second_board,
            every_secs=EVERY_SECS if self.world_size <= MANY_RANKS else MANY_EVERY_SECS,
            watch=None if environment.agent_store or self.is_main else 0,
            launched=environment.agent_store,
        )

    def open(self, device: str | torch.device) -> None:
        """Choose the device and meet the other ranks."""
        self.device = choose_device(device, self.environment)
        backend = backend_of(self.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.doing(MEETING)
        dist.init_process_group(
            backend,
            store=PrefixStore(f"group/{self.restarts}", self._store),
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(seconds=self.timeout_secs),
        )
        if self._board.has_launcher():
            watch_launcher_alone()
        kinds = self.gather(self.device.type)
        other = next((rank for rank, kind in enumerate(kinds) if kind != kinds[0]), None)
        if other is not None:
            raise RecgradError(
                f"device: rank 0 computes on {kinds[0]}, rank {other} on {kinds[other]}; "
                "give all of them --device cpu, or as many GPUs as processes to every machine"
            )
        self.share_memory()

    def leave(self) -> None:
        """Wait until all ranks have done their work, however long one takes."""
        self.doing("done")
        try:
            self._wait_until_done()
        except dist.DistError:
            # The launcher is gone and its store with it; what there was to do is done all the same.
            if not self.environment.agent_store:
                raise

    def _wait_until_done(self) -> None:
        self._board.add("done")
        self._wait_for("done", self.world_size)

    def _await_main(self) -> None:
        self._turns += 1
        place = f"turn {self._turns}"
        if self.is_main:
            self._board.add(place)
            return
        self._pulse.waits = True
        try:
            self._wait_for(place, 1, must_move=0)
        finally:
            self._pulse.waits = False

    def _wait_for(self, place: str, count: int, must_move: int | None = None) -> None:
        """Wait until `count` ranks have come to a place, however long they take.

        Not when a rank fails or ends, nor when the one that `must_move` is silent on what it does.
        """
        pause, looked = 0.005, time.monotonic()
        moves, moved = -1, looked
        while self._board.add(place, 0) < count:
            if self._board.failure() is not None:
                raise RuntimeError(f"connection reset by peer: a rank failed before '{place}'")
            now = time.monotonic()
            if now - looked > LOOK_SECS:
                looked = now
                gone = [beat for beat in known(self._board.beats()) if is_gone(beat)]
                if gone and self._board.add(place, 0) < count:
                    raise RuntimeError(f"connection reset by peer: a rank ended before '{place}'")
            beat = None if must_move is None else self._board.beat_of(must_move)
            if beat is not None and beat.moves != moves:
                moves, moved = beat.moves, now
            if must_move is not None and now - moved > self.timeout_secs:
                raise RuntimeError(f"wait timeout: rank {must_move} does not move on to '{place}'")
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def close(self) -> None:
        """Give back the memory, the process group, the thread and the store."""
        self.leave_memory()
        with suppress(Exception):
            if dist.is_initialized():
                dist.destroy_process_group()
        self._heartbeat.stop()
        with suppress(Exception):
            self._board.add("closed")
            if self._hosts_store:
                self._keep_store()

    def _keep_store(self) -> None:
        """Stay until the others have read what is on the board."""
        deadline = time.monotonic() + LEAVE_SECS
        others = [beat for beat in known(self._board.beats()) if beat.rank != self.rank]
        while time.monotonic() < deadline and self._board.add("closed", 0) < self.world_size:
            if all(is_gone(beat) for beat in others):
                return
            time.sleep(0.02)

    @contextmanager
    def guard(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self._tell("stopped", "was interrupted")
            if self.is_main:
                raise
            raise SystemExit(INTERRUPTED) from None
        except ProcessError:
            raise
        except Exception as error:
            _ignore_sigterm()
            self._explain(error)
            raise

    def _explain(self, error: Exception) -> None:
        """Raise a ProcessError for what another rank caused, and tell the others of the rest."""
        own = self._pulse.beat()
        try:
            if comes_from_a_peer(error):
                cause = find_cause(self._board, own, error, self.timeout_secs)
                published = self._board.fail(cause)
                raise self._error(published) from error
            kind = "error" if isinstance(error, RecgradError) else "crash"
            text = str(error) if kind == "error" else f"{type(error).__name__}: {first_line(error)}"
            published = self._board.fail(Failure(self.rank, own.host, kind, text))
        except (RuntimeError, OSError) as lost:
            if comes_from_a_peer(error):
                self._end_quietly_with_the_launcher()
                raise ProcessError(self._store_lost()) from lost
            return
        if published.rank != self.rank:
            raise self._error(published) from error

    def _end_quietly_with_the_launcher(self) -> None:
        """End as by the SIGTERM that the kernel sends until the ranks have met.

        The lost store is sometimes noticed before the signal comes; there is nothing to tell either way.
        """
        if self._pulse.what == MEETING and self._heartbeat.lost_launcher(within_secs=LAUNCHER_SECS):
            raise SystemExit(TERMINATED)

    def _tell(self, kind: str, message: str) -> None:
        with suppress(Exception):
            self._board.fail(Failure(self.rank, host_identity(), kind, message))

    def _error(self, failure: Failure) -> ProcessError:
        """What this rank says of a failure, and whether the user has been told already."""
        by_other = failure.kind in ("late", "gone")
        text = failure.message if by_other else f"rank {failure.rank} failed: {failure.message}"
        if failure.kind == "late":
            setting = f"train_config.process_timeout_secs (now {self.timeout_secs:g})"
            text += f"\na slow rank is waited for longer with {setting}"
        watched = failure.kind == "gone" and self._board.has_launcher()
        same_terminal = failure.host == host_identity()
        told = watched or (failure.rank != self.rank and (same_terminal or self.local_rank != 0))
        return ProcessError(text, reported=told)

    def _store_lost(self) -> str:
        holder = "the launcher" if self.environment.agent_store else "rank 0"
        seen = self._heartbeat.seen
        last = ""
        if seen is not None:
            last = f" (last seen {max(time.time() - seen.at, 0):.0f} s ago at '{seen.doing}')"
        return f"{holder} is gone{last}; rank {self.rank} was at '{self._pulse.what}'"

    def _second_board(self) -> Board:
        store = connect(self.environment, ANSWER_SECS, host=False)
        return Board(store, self.world_size, self.restarts)


@contextmanager
def open_processes(
    timeout_secs: float = DEFAULT_TIMEOUT_SECS, *, device: str | torch.device = "auto"
) -> Iterator[Processes]:
    """The processes of this run as torchrun's variables tell, guarded; alone without them.

    `device` is what `choose_device` takes. Opened once more inside, they are the same: ranks that make
    several runs one after another meet once, because a store that a rank holds ends with its group.
    """
    environment = read_environment()
    if not environment.distributed:
        yield Processes(environment, choose_device(device, environment))
        return
    if _opened:
        yield _opened[-1]
        return
    group = _Group(environment, timeout_secs)
    _opened.append(group)
    try:
        with group.guard():
            group.open(device)
            yield group
            group.leave()
    finally:
        _opened.remove(group)
        group.close()


def _ignore_sigterm() -> None:
    """Let the process say why it ends: a launcher that sees another rank end asks it to go at once."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
