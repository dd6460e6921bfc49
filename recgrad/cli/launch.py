"""Starts the processes of a run on this machine, watches them, and tells how the run ended."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from recgrad.cli.outcome import POLITE, SIGNALLED, Outcome, judge
from recgrad.terminal import say
from recgrad.training.signals import HANDLED

if TYPE_CHECKING:
    from recgrad.training.processes.board import Board

HOST = "127.0.0.1"
LOOK_SECS = 0.05
# The others of a rank that failed notice at once and end by themselves, unless they hang.
END_SECS = 30.0
# Those that still wait for it to come cannot notice.
MEET_SECS = 2.0
PR_SET_PDEATHSIG = 1
# A store that is gone is said in our words, not in frames of C++.
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
SHOW_CURSOR = "\x1b[?25h"


def launch(command: Sequence[str], nproc: int, *, max_restarts: int = 0, resume_command: str = "") -> int:
    """Run `command` in `nproc` processes as torchrun would; returns the exit code.

    A signal is handed to every process, which then stop together; a second one kills them. When
    a process dies, all are started again up to `max_restarts` times, with
    TORCHELASTIC_RESTART_COUNT telling them to resume from the last checkpoint. `resume_command` is the
    command that the user may resume with.
    """
    cores = _affinity()
    with _Signals() as signals:
        for restarts in range(max_restarts + 1):
            _set_affinity(cores)  # torch, loaded after the first start, may have bound this process to one
            start = _Start(command, nproc, restarts, max_restarts)
            signals.hand_to(start.send)
            outcome = start.watch(signals)
            again = outcome.restart and restarts < max_restarts and not signals.first
            _tell(outcome, f"restart {restarts + 1} of {max_restarts}" if again else "", resume_command)
            if not again:
                break
    return outcome.code


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _set_affinity(cores: set[int]) -> None:
    """Let this process, and those that it starts, run on these cores; all that there are, where unknown."""
    if cores:
        os.sched_setaffinity(0, cores)


def _tell(outcome: Outcome, restart: str, resume_command: str) -> None:
    next_step = ""
    if restart:
        next_step = f"starting again from the last checkpoint ({restart})"
    elif outcome.restart and resume_command:
        next_step = f"resume with: {resume_command}"
    text = "; ".join(filter(None, (outcome.message, next_step)))
    if text:
        # A progress bar that died with its process has left the cursor hidden, at the end of the bar.
        if sys.stderr.isatty():
            sys.stderr.write(f"{SHOW_CURSOR}\n")
        say(text, error=True)


class _Signals:
    """While entered, hands a first signal to the processes and lets a second kill them."""

    def __init__(self) -> None:
        self.first = 0
        self._send: Callable[[int], None] = lambda number: None
        self._before = {number: signal.getsignal(number) for number in HANDLED}

    def __enter__(self) -> _Signals:
        for number in HANDLED:
            signal.signal(number, self._take)
        return self

    def hand_to(self, send: Callable[[int], None]) -> None:
        """Send what comes, and what came before, to these processes."""
        self._send = send
        if self.first:
            send(self.first)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        second = bool(self.first)
        self.first = self.first or number
        self._send(signal.SIGKILL if second else number)


class _Start:
    """One start of the processes."""

    def __init__(self, command: Sequence[str], nproc: int, restarts: int, max_restarts: int) -> None:
        self._asked: set[int] = set()
        self._killed: set[int] = set()
        # The address is known before torch is there to serve it: the processes load it meanwhile.
        listener = socket.create_server((HOST, 0))
        shared = {
            "WORLD_SIZE": nproc,
            "LOCAL_WORLD_SIZE": nproc,
            "MASTER_ADDR": HOST,
            "MASTER_PORT": listener.getsockname()[1],
            "TORCHELASTIC_RESTART_COUNT": restarts,
            "TORCHELASTIC_MAX_RESTARTS": max_restarts,
            "TORCHELASTIC_RUN_ID": "recgrad",
            "TORCHELASTIC_USE_AGENT_STORE": True,
        }
        self._ranks = [
            _start_process(command, {**shared, "RANK": rank, "LOCAL_RANK": rank}) for rank in range(nproc)
        ]
        try:
            self._board = _serve_board(listener, nproc, restarts)
        except BaseException:
            self.send(signal.SIGKILL)
            raise

    def send(self, number: int) -> None:
        """Kill the processes that still run, or ask each of them once to stop."""
        done = self._killed if number == signal.SIGKILL else self._asked
        for rank, process in enumerate(self._ranks):
            if rank not in done and process.poll() is None:
                done.add(rank)
                process.send_signal(number)

    def watch(self, signals: _Signals) -> Outcome:
        """Wait until all processes have ended; those that hang after another's failure are killed."""
        failed_at: float | None = None
        # Each is asked each time: one that has ended must be seen while others run.
        while None in (codes := [process.poll() for process in self._ranks]):
            if failed_at is None and any(code not in (None, *POLITE) for code in codes):
                failed_at = time.monotonic()
            if failed_at is not None:
                waited = time.monotonic() - failed_at
                if waited > END_SECS or (waited > MEET_SECS and self._meeting(codes)):
                    self.send(signal.SIGKILL)
            time.sleep(LOOK_SECS)
        return judge(
            [process.returncode for process in self._ranks],
            stopped_by=signals.first,
            killed_here=self._killed,
            failure=self._board.failure(),
            beats=self._board.beats(),
        )

    def _meeting(self, codes: Sequence[int | None]) -> bool:
        """Whether all ranks that run wait for the one that has ended, before the run has begun."""
        from recgrad.training.processes.board import MEETING

        beats = self._board.beats()
        running = [beats[rank] for rank, code in enumerate(codes) if code is None]
        return all(beat is None or beat.doing == MEETING for beat in running)


def _start_process(command: Sequence[str], variables: Mapping[str, object]) -> subprocess.Popen[bytes]:
    environment = {**QUIET, **os.environ, **{name: str(value) for name, value in variables.items()}}
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        # Else Ctrl-C would reach the processes twice: from the terminal and from here.
        start_new_session=True,
        preexec_fn=_end_with(os.getpid()),
    )


def _end_with(launcher: int) -> Callable[[], None] | None:
    """What a new process does first: ask the kernel for a SIGTERM when the launcher dies, however it dies.

    It ends a rank that has not met the others at once and quietly. Ranks that have met watch the launcher
    themselves. None where the kernel has no such thing.
    """
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return None

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != launcher:
            os._exit(SIGNALLED + signal.SIGTERM)

    return ask


def _serve_board(listener: socket.socket, nproc: int, restarts: int) -> Board:
    """Hold the store of the run, so that it outlives every rank."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from recgrad.training.processes.board import Board

    port = listener.getsockname()[1]
    store = TCPStore(
        HOST, port, nproc, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    board = Board(store, nproc, restarts)
    board.set_launcher()
    return board
