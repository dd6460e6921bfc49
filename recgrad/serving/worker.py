"""One worker process: loads the model, serves it, drains when it is asked to end.

Started by the supervisor as `python -m recgrad.serving.worker`, with its settings on standard
input. It writes one line of JSON to the descriptor that it is told: {"ready": …} or {"error": …}.
Standard input stays open as long as the supervisor lives.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
import threading
from typing import Any

from recgrad.errors import RecgradError
from recgrad.terminal import say

EXIT_CANNOT_SERVE = 2
WRITING_S = 1.0
"""How long clients have to take answers that are written already, at the end."""


def main() -> int:
    """Serve until SIGTERM; returns the exit code."""
    task = json.loads(sys.stdin.buffer.readline())
    _speak(f"worker {task['worker'] + 1}: ")
    status = os.fdopen(task["status"], "w")
    try:
        from recgrad.serving.listening import run

        run(_serve(task, status))
    except RecgradError as error:
        _tell(status, {"error": str(error)})
        return EXIT_CANNOT_SERVE
    return 0


async def _serve(task: dict[str, Any], status: Any) -> None:
    from recgrad.serving.app import Application
    from recgrad.serving.following import load_following
    from recgrad.serving.holder import ModelHolder
    from recgrad.serving.listening import listen
    from recgrad.serving.metrics import Metrics
    from recgrad.serving.routes import ROUTES
    from recgrad.serving.scorer import Scorer
    from recgrad.serving.service import Service
    from recgrad.serving.settings import ServerSettings

    settings = ServerSettings.from_json(task["settings"])
    paths = sorted({name.partition(" ")[2] for name in ROUTES})
    metrics = Metrics(task["metrics"], paths, workers=settings.workers, worker=task["worker"])
    counters = {"swap": "recgrad_swaps_total", "refused": "recgrad_refused_total"}

    def happened(event: str) -> None:
        metrics.count(counters[event])
        if event == "swap":
            _tell(status, {"took": holder.current.version})

    holder = ModelHolder(
        settings.bundle,
        stores=settings.stores,
        folder=task["folder"],
        fallback=task["fallback"],
        on_event=happened,
        load=load_following(settings.follow) if settings.follow else Scorer.load,
    )
    deltas = _follow_deltas(holder, metrics, settings) if settings.follow else None
    loop = asyncio.get_running_loop()
    service = Service(settings, holder, metrics, loop)
    app = Application(service)
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    threading.Thread(target=_follow_supervisor, args=(loop, ending), daemon=True).start()
    _raise_file_limit()
    sys.setswitchinterval(0.001)  # so that the event loop does not wait long for the scoring thread
    gc.collect()
    gc.freeze()  # the model stays; looking at it again and again would cost milliseconds
    service.start()
    server = await listen(app, settings.host, settings.port)
    holder.follow(settings.poll_s)
    if deltas is not None:
        deltas.start()
    metrics.count("recgrad_worker_starts_total")
    metrics.set("recgrad_model_loaded_seconds", holder.loaded_at)
    _tell(status, {"ready": holder.current.version})
    await ending.wait()
    service.draining = True
    server.close()
    await _drained(app, settings.drain_s)
    service.stop()


def _follow_deltas(holder: Any, metrics: Any, settings: Any) -> Any:
    """What applies deltas to the model that is served, and tells of it."""
    from recgrad.serving.following import DeltaThread, FollowingScorer

    def applied(scorer: FollowingScorer, count: int = 0) -> None:
        metrics.count("recgrad_deltas_total", count)
        metrics.set("recgrad_delta_number", scorer.applied.number)
        metrics.set("recgrad_delta_created_seconds", scorer.applied.created)
        if scorer.refused and not count:
            metrics.count("recgrad_refused_total")

    applied(holder.current.scorer)
    return DeltaThread(lambda: holder.current.scorer, settings.poll_s, applied)


async def _drained(app: Any, most_s: float) -> None:
    """Wait for requests in flight, and for clients to take their answers."""
    loop = asyncio.get_running_loop()
    until = loop.time() + most_s
    while app.active and loop.time() < until:
        await asyncio.sleep(0.01)
    if app.active:
        logging.getLogger("recgrad.serving").warning(
            "%d requests were still without an answer after --drain_s %g", app.active, most_s
        )
    until = loop.time() + WRITING_S
    while app.connections and loop.time() < until:
        await asyncio.sleep(0.01)


def _follow_supervisor(loop: asyncio.AbstractEventLoop, ending: asyncio.Event) -> None:
    """End when standard input does: the supervisor is gone."""
    while os.read(0, 1):  # not through sys.stdin, whose lock would be held at the end
        pass
    loop.call_soon_threadsafe(ending.set)


def _raise_file_limit() -> None:
    """Let every connection have its descriptor."""
    from recgrad.serving.app import MAX_CONNECTIONS

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + 1024
    if 0 <= soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard < 0 else min(wanted, hard), hard))


def _tell(status: Any, message: dict[str, Any]) -> None:
    status.write(json.dumps(message) + "\n")
    status.flush()


class _Lines(logging.Handler):
    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def emit(self, record: logging.LogRecord) -> None:
        say(self._prefix + self.format(record), error=True)


def _speak(prefix: str) -> None:
    logger = logging.getLogger("recgrad")
    logger.setLevel(logging.INFO)
    logger.addHandler(_Lines(prefix))
    logger.propagate = False


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of the server may not outlive the interpreter, and nothing is left to do
