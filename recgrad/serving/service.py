"""What the routes of one worker share: the model, the batcher, the counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from recgrad.serving.answers import ARROW, JSON, Answer, RequestError, Scored
from recgrad.serving.batcher import Batcher, Waiting
from recgrad.serving.holder import ModelHolder
from recgrad.serving.metrics import Metrics
from recgrad.serving.recommending import IndexHolder
from recgrad.serving.requests import ScoreRequest, decode
from recgrad.serving.scoring import score_requests
from recgrad.serving.settings import ServerSettings

T = TypeVar("T")

LATE = RequestError(504, "the request waited longer than --timeout_s; send fewer at a time, or add workers")


@dataclass(frozen=True)
class HttpRequest:
    """A request as routes see it.

    Attributes:
        body: whole; b"" for requests without one.
        kind: its content type.
        accept: what the client takes.
        query: what follows the question mark.
        started: when it came, by time.monotonic.
    """

    body: bytes
    kind: str
    accept: str
    query: str
    started: float


@dataclass(eq=False)
class Asked(Waiting[Answer]):
    """A scoring request in the queue."""

    request: HttpRequest | None = None
    read: ScoreRequest | RequestError | None = None


class Service:
    """One worker's model with everything around it.

    Args:
        settings: of the server.
        holder: of the model.
        metrics: of the worker.
        loop: the event loop that answers.
    """

    def __init__(
        self,
        settings: ServerSettings,
        holder: ModelHolder,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.settings = settings
        self.holder = holder
        self.metrics = metrics
        self.loop = loop
        self.draining = False
        self.index = IndexHolder(settings.index, settings.poll_s) if settings.index else None
        self._keys = {role: store.key for role, store in settings.stores.items()}
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="aside")
        self.batcher: Batcher[Asked, Answer] = Batcher(
            self._answer_all,
            self._prepare,
            LATE.answer(),
            settings=settings,
            metrics=metrics,
            loop=loop,
        )

    def start(self) -> None:
        """Start the scoring thread."""
        self.batcher.start()

    def stop(self) -> None:
        """End its threads."""
        self.batcher.stop()
        self.holder.stop()
        self._aside.shutdown(wait=False)

    async def score(self, request: HttpRequest) -> Answer:
        """The scores of a request, computed together with others."""
        deadline = request.started + self.settings.timeout_s
        asked = Asked(self.loop.create_future(), len(request.body), deadline, request=request)
        self.batcher.submit(asked)
        return await asked.future

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """A function on a thread beside the scoring one: for what is rare and takes longer."""
        return await self.loop.run_in_executor(self._aside, function, *arguments)

    def decode(self, request: HttpRequest) -> ScoreRequest:
        """The rows of a request; raises a RequestError."""
        asked = dict(part.partition("=")[::2] for part in request.query.split("&") if part)
        unknown = [name for name in asked if name != "on_bad_row"]
        if unknown:
            raise RequestError(400, f"the query has '{unknown[0][:80]}'; only on_bad_row is known there")
        return decode(
            request.body,
            request.kind,
            max_rows=self.settings.max_rows,
            keys=self._keys,
            on_bad_row=asked.get("on_bad_row", ""),
        )

    def _prepare(self, asked: Asked) -> int:
        assert asked.request is not None
        try:
            asked.read = self.decode(asked.request)
        except RequestError as error:
            asked.read = error
            return 0
        return asked.read.size

    def _answer_all(self, batch: Sequence[Asked]) -> list[Answer]:
        served = self.holder.current
        fit = [asked for asked in batch if isinstance(asked.read, ScoreRequest)]
        results = iter(score_requests(served, [asked.read for asked in fit]))  # type: ignore[misc]
        answers = []
        for asked in batch:
            result = next(results) if isinstance(asked.read, ScoreRequest) else asked.read
            answers.append(self._answer(asked, result))
            asked.read = None
        return answers

    def _answer(self, asked: Asked, result: Scored | RequestError | None) -> Answer:
        assert asked.request is not None
        assert result is not None
        self.metrics.count("recgrad_rows_total", asked.rows)
        if isinstance(result, RequestError):
            self.metrics.count("recgrad_bad_rows_total", result.bad_rows)
            return result.answer()
        if result.bad:
            self.metrics.count("recgrad_bad_rows_total", len(result.bad))
        return result.answer(answer_kind(asked.request))


def answer_kind(request: HttpRequest) -> str:
    """JSON or Arrow: what the client accepts, else what it sent."""
    if ARROW in request.accept:
        return ARROW
    if JSON in request.accept or "json" in request.kind:
        return JSON
    return ARROW if request.kind.startswith(ARROW) else JSON


def now() -> float:
    """The clock that requests are timed by."""
    return time.monotonic()
