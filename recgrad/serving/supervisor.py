"""Starts workers, replaces those that die, and ends them in order.

Workers are processes of their own that listen at the same address (SO_REUSEPORT), so that one
that is killed takes no other with it.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import IO, Any

from recgrad.errors import RecgradError
from recgrad.serving.kept import Keeper
from recgrad.serving.settings import ServerSettings
from recgrad.terminal import say

QUICK_DEATH_S = 10.0
MAX_PAUSE_S = 10.0


@dataclass
class Worker:
    """A worker process, or the pause before it is started again.

    Attributes:
        number: from 0.
        process: None while it pauses.
        status: what it says.
        heard: the beginning of a line that it has not finished.
        born: when it was started.
        deaths: how often in a row it died soon after its start.
        start_at: when the pause ends.
        ready: it has said so.
    """

    number: int
    process: subprocess.Popen[bytes] | None = None
    status: IO[bytes] | None = None
    heard: bytes = b""
    born: float = 0.0
    deaths: int = 0
    start_at: float = 0.0
    ready: bool = False


class Supervisor:
    """Keeps a server's workers alive until SIGTERM or SIGINT.

    Args:
        settings: of the server.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._address = resolve(settings.host, settings.port)
        self._holding = hold_port(*self._address)
        host, port = self._holding.getsockname()[:2]
        self.settings = replace(settings, host=host, port=port)
        self._workers = [Worker(number) for number in range(settings.workers)]
        self._selector = selectors.DefaultSelector()
        self._ending = False
        self._announced = False
        self._folder = tempfile.mkdtemp(prefix="recgrad-serve-")
        self._keeper = Keeper(self.settings.bundle, self._folder)
        self._wake_reader, self._wake_writer = socket.socketpair()

    def run(self) -> int:
        """Serve; returns the exit code.

        Raises:
            RecgradError: the model or a file cannot be served.
        """
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        previous = {number: signal.signal(number, self._end) for number in (signal.SIGTERM, signal.SIGINT)}
        signal.set_wakeup_fd(self._wake_writer.fileno())
        try:
            while not self._ending:
                self._start_due()
                self._listen(self._next_due())
                self._bury()
            say("ending: requests in flight are answered first", error=True)
            return 0
        finally:
            self._stop_all()
            signal.set_wakeup_fd(-1)
            for number, handler in previous.items():
                signal.signal(number, handler)
            self._holding.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._ending = True

    def _start_due(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if worker.process is None and worker.start_at <= now:
                self._start(worker)

    def _next_due(self) -> float:
        waits = [worker.start_at - time.monotonic() for worker in self._workers if worker.process is None]
        return max(0.0, min([1.0, *waits]))

    def _start(self, worker: Worker) -> None:
        read, write = os.pipe()
        kept = self._keeper.kept
        task = {
            "worker": worker.number,
            "status": write,
            "settings": self.settings.to_json(),
            "folder": self._folder,
            "fallback": "" if kept is None else str(kept.path),
            "metrics": os.path.join(self._folder, "metrics"),
        }
        try:
            worker.process = subprocess.Popen(
                [sys.executable, "-m", "recgrad.serving.worker"],
                stdin=subprocess.PIPE,
                pass_fds=(write, *(() if kept is None else kept.descriptors)),
                env=worker_environment(),
                start_new_session=True,  # Ctrl-C is for the supervisor, which tells its workers
            )
        finally:
            os.close(write)
        worker.born, worker.ready = time.monotonic(), False
        worker.status, worker.heard = os.fdopen(read, "rb", buffering=0), b""
        self._selector.register(worker.status, selectors.EVENT_READ, worker)
        assert worker.process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead already, and buried like any other
            worker.process.stdin.write(json.dumps(task).encode() + b"\n")
            worker.process.stdin.flush()

    def _listen(self, most_s: float) -> None:
        for key, _ in self._selector.select(most_s):
            if key.data is None:
                self._wake_reader.recv(4096)
                continue
            heard = os.read(key.fd, 1 << 16)
            if not heard:
                self._selector.unregister(key.fileobj)
            *lines, key.data.heard = (key.data.heard + heard).split(b"\n")
            for line in lines:
                self._told(key.data, json.loads(line))

    def _told(self, worker: Worker, message: dict[str, Any]) -> None:
        if "ready" in message:
            worker.ready, worker.deaths = True, 0
            self._keeper.accepted(message["ready"])
            if not self._announced:
                self._announced = True
                say(self._announcement(message["ready"]))
        elif "took" in message:
            self._keeper.accepted(message["took"])
        elif not self._announced:
            raise RecgradError(message["error"])
        else:
            say(f"worker {worker.number + 1} cannot serve: {message['error']}", error=True)

    def _announcement(self, version: str) -> str:
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        count = self.settings.workers
        return (
            f"serving {self.settings.bundle} (version {version}) on http://{host}:{self.settings.port} "
            f"with {count} worker{'s' if count > 1 else ''}; Ctrl-C ends it"
        )

    def _bury(self) -> None:
        """Note workers that died; they are started again, at once or after a pause if they die quickly."""
        for worker in self._workers:
            if worker.process is None or worker.process.poll() is None:
                continue
            if not self._announced and not self._ending:
                self._listen(0.0)  # it may have said why
                raise RecgradError(
                    f"serve: a worker ended with exit code {worker.process.returncode} before it was ready; "
                    "the lines above say why"
                )
            lived = time.monotonic() - worker.born
            worker.deaths = worker.deaths + 1 if not worker.ready or lived < QUICK_DEATH_S else 0
            pause = 0.0 if worker.deaths < 2 else min(MAX_PAUSE_S, 0.5 * 2 ** (worker.deaths - 2))
            code = worker.process.returncode
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            when = f" in {pause:g} s" if pause else ""
            say(f"worker {worker.number + 1} {how}; it is started again{when}", error=True)
            self._close(worker)
            worker.start_at = time.monotonic() + pause

    def _close(self, worker: Worker) -> None:
        if worker.status is not None:
            if worker.status in self._selector.get_map():
                self._selector.unregister(worker.status)
            worker.status.close()
        if worker.process is not None and worker.process.stdin is not None:
            with suppress(BrokenPipeError):
                worker.process.stdin.close()
        worker.process, worker.status = None, None

    def _stop_all(self) -> None:
        processes = [worker.process for worker in self._workers if worker.process is not None]
        for process in processes:
            process.terminate()
        until = time.monotonic() + self.settings.drain_s + 5
        for process in processes:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for worker in self._workers:
            self._close(worker)


def worker_environment() -> dict[str, str]:
    """The environment of a worker: a worker computes on one thread, and others have the other cores."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    paths = [path for path in sys.path if path]
    return {**os.environ, **dict.fromkeys(names, "1"), "PYTHONPATH": os.pathsep.join(paths)}


def resolve(host: str, port: int) -> tuple[int, tuple[Any, ...]]:
    """The family and address of a host name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise RecgradError(
            f"serve: --host {host!r} is no address of this machine; use 127.0.0.1 or 0.0.0.0"
        ) from None
    family, _, _, _, address = found[0]
    return int(family), address


def hold_port(family: int, address: tuple[Any, ...]) -> socket.socket:
    """A socket that is bound and never listens, so that no other server takes the port.

    Raises:
        RecgradError: the port is in use, may not be used, or the address is not of this machine.
    """
    host, port = address[:2]
    probe = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Workers share the port; without this look two servers would, and each get half of the requests.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        chosen = probe.getsockname()[1]
    except OSError as error:
        raise RecgradError(_why_not(error, host, port)) from None
    finally:
        probe.close()
    holding = socket.socket(family, socket.SOCK_STREAM)
    holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        holding.bind((host, chosen, *address[2:]))
    except OSError as error:
        holding.close()
        raise RecgradError(_why_not(error, host, port)) from None
    return holding


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"serve: port {port} of {host} is in use by another process; end it, or choose another --port"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"serve: no permission for port {port}; those below 1024 need root, choose another --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"serve: --host {host} is no address of this machine; use 127.0.0.1 or 0.0.0.0"
    return f"serve: cannot listen at {host}:{port}: {error.strerror or error}"
