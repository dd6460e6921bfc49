"""What the routes of one worker share: the model, the batcher, the counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from recgrad.serving.answers import ARROW, JSON, Answer, RequestError, Scored
from recgrad.serving.batcher import Batcher, Waiting
from recgrad.serving.holder import ModelHolder
from recgrad.serving.json_rows import brackets
from recgrad.serving.metrics import Metrics
from recgrad.serving.quick import MAX_ROWS
from recgrad.serving.recommending import IndexHolder
from recgrad.serving.requests import JSON_KINDS, ScoreRequest, decode, plain_kind
from recgrad.serving.scoring import Body, Result, score_bodies
from recgrad.serving.settings import ServerSettings

T = TypeVar("T")

ARROW_ROW_BYTES = 128
_NO_WISH = ("", "*/*", JSON)  # what a client accepts that sent JSON and takes it back
LATE = RequestError(504, "the request waited longer than --timeout_s; send fewer at a time, or add workers")


class HttpRequest(NamedTuple):
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
    """A scoring request in the queue, with the content type that is wanted back."""

    body: Body
    kind: str


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
        self.index = None
        if settings.index:
            self.index = IndexHolder(settings.index, settings.poll_s, settings.index_table)
        self._keys = {role: store.key for role, store in settings.stores.items()}
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="aside")
        self.batcher: Batcher[Asked, Answer] = Batcher(
            self._answer_all,
            LATE.answer(),
            settings=settings,
            metrics=metrics,
            loop=loop,
            row_s=holder.row_s,
        )

    def start(self) -> None:
        """Start the scoring thread."""
        self.batcher.start()

    def stop(self) -> None:
        """End its threads."""
        self.batcher.stop()
        self.holder.stop()
        self._aside.shutdown(wait=False)

    def score(self, request: HttpRequest) -> Answer | asyncio.Future[Answer]:
        """The scores of a request: at once, or computed together with others."""
        quick = request.kind == JSON and request.accept in _NO_WISH and not request.query
        quick = quick and self.batcher.is_free_for(MAX_ROWS)
        if quick:
            at_once = self._answer_quickly(request.body)
            if at_once is not None:
                return at_once
        deadline = request.started + self.settings.timeout_s
        rows = about_rows(request)
        body = Body(
            request.body,
            request.kind,
            lambda: self.decode(request),
            query=bool(request.query),
            about=rows,
            quick=not quick,
        )
        asked = Asked(
            self.loop.create_future(), len(request.body), deadline, body, answer_kind(request), rows=rows
        )
        answer = self.batcher.answer_alone(asked)
        if answer is not None:
            return answer
        self.batcher.submit(asked)
        return asked.future

    def _answer_quickly(self, body: bytes) -> Answer | None:
        """The answer to a plain request that is alone, by the shortest way; None if it needs another."""
        served = self.holder.current
        if served.quick is None or served.stores:
            return None
        started = now()
        try:
            found = served.quick.score((body,), self.settings.max_rows)
        except Exception:  # the other ways have the words for it
            return None
        if found is None:
            return None
        scores, (rows,) = found
        answer = Scored(scores, served.version).answer(JSON)
        self.metrics.count("recgrad_rows_total", rows)
        self.batcher.scored(now() - started, 1, rows)
        return answer

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """A function on a thread beside the scoring one: for what is rare and takes longer.

        Raises:
            RequestError: it was not done in time.
        """
        running = self.loop.run_in_executor(self._aside, function, *arguments)
        try:
            return await asyncio.wait_for(running, self.settings.timeout_s)
        except asyncio.TimeoutError:
            raise LATE from None

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

    def _answer_all(self, batch: Sequence[Asked]) -> list[Answer]:
        results = score_bodies(self.holder.current, [asked.body for asked in batch], self.settings.max_rows)
        return [self._answer(asked, result) for asked, result in zip(batch, results)]

    def _answer(self, asked: Asked, result: Result) -> Answer:
        asked.rows = asked.body.rows
        self.metrics.count("recgrad_rows_total", asked.rows)
        if isinstance(result, RequestError):
            self.metrics.count("recgrad_bad_rows_total", result.bad_rows)
            return result.answer()
        if result.bad:
            self.metrics.count("recgrad_bad_rows_total", len(result.bad))
        return result.answer(asked.kind)


def about_rows(request: HttpRequest) -> int:
    """About how many rows a request has: a bracket each, or some bytes of Arrow."""
    if plain_kind(request.kind) in JSON_KINDS:
        return brackets(request.body)
    return len(request.body) // ARROW_ROW_BYTES


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
