"""The application of a worker: decides about requests, has the routes answer them, ends what is late."""

from __future__ import annotations

import asyncio
import logging
import os
from email.utils import formatdate
from functools import partial
from typing import Any

import httptools

from recgrad.serving.answers import Answer, RequestError
from recgrad.serving.connection import Connection, Heads, Message
from recgrad.serving.memory import MemoryWatch
from recgrad.serving.routes import ROUTES, Route
from recgrad.serving.service import HttpRequest, Service, now

logger = logging.getLogger("recgrad.serving")

FULL = "the server holds as many requests as it may (--max_queue, --max_queue_mb); send again later"
MAX_CONNECTIONS = 8192
"""Of one worker; clients beyond are answered 429."""
AWAKE_S = 60e-6
"""How long a worker looks for the next request before it sleeps: to be woken costs it nearly as much.

Where every core has a worker they sleep at once, since others may wait for the core.
"""
SWEEP_S = 0.25
"""How often requests that are late are looked for."""


class Application:
    """Answers requests with the routes of the registry.

    Args:
        service: of the worker.
        max_connections: clients beyond are answered 429.

    Attributes:
        active: requests without an answer.
        heads: of answers.
        awake: it looks for the next request without sleeping.
    """

    def __init__(self, service: Service, max_connections: int = MAX_CONNECTIONS) -> None:
        self.service = service
        self.heads = Heads()
        self.active = 0
        self._max_connections = max_connections
        self._routes: dict[tuple[bytes, bytes], Route] = {}
        self._paths: dict[str, list[str]] = {}
        for name, route in ROUTES.items():
            method, _, path = name.partition(" ")
            made = route(service)
            for verb in (method, "HEAD") if method == "GET" else (method,):
                self._routes[verb.encode(), path.encode()] = made
            self._paths.setdefault(path, []).append(method)
        self._connections: set[Connection] = set()
        self._may_stay_awake = (os.cpu_count() or 1) > service.settings.workers
        self.awake, self._awake_until = False, 0.0
        self._memory = MemoryWatch()
        self._running: set[asyncio.Future[Answer]] = set()

    @property
    def draining(self) -> bool:
        """Whether connections are closed after their answers, and idle ones at the next look.

        Until then a request that was on its way is still answered.
        """
        return self.service.draining

    def start(self) -> None:
        """Begin to look for late requests."""
        self._sweep()

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._connections)

    # What connections call.

    def opened(self, connection: Connection) -> bool:
        """Take a connection up; False if there are too many."""
        self._connections.add(connection)
        self.service.batcher.clients = len(self._connections)
        return len(self._connections) <= self._max_connections

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        self.service.batcher.clients = len(self._connections)

    def full(self) -> RequestError:
        """The answer where there is no room."""
        return RequestError(429, FULL)

    def begin(self, message: Message, *, ahead: bool) -> None:
        """Decide by its head whether a request is taken up: what answers it, or why it is refused.

        One that was sent ahead of the answer before it counts as active when its turn comes.
        """
        if not ahead:
            self._activate(message)
        target, _, query = message.target.partition(b"?")
        route = self._routes.get((message.method, target))
        try:
            if route is None:
                route, target, query = self._find(message)
            message.route = route
            message.path = target.decode("latin-1")
            message.query = query.decode("latin-1")
            if route.takes_body:
                self._admit(message)
        except RequestError as error:
            message.refusal = error.to_keep()

    def _activate(self, message: Message) -> None:
        if not message.active:
            message.active = True
            self.active += 1

    def _find(self, message: Message) -> tuple[Route, bytes, bytes]:
        """The route of a target that is not plainly one, with path and query."""
        try:
            url = httptools.parse_url(message.target)
        except httptools.HttpParserInvalidURLError:
            raise RequestError(400, f"{_shown(message.target)} is no target of a request") from None
        path = url.path or b"/"
        route = self._routes.get((message.method, path))
        if route is not None:
            return route, path, url.query or b""
        methods = self._paths.get(path.decode("latin-1"))
        if methods:
            message.path = path.decode("latin-1")
            takes = ", ".join(sorted(methods))
            raise RequestError(405, f"{message.path} takes {takes}, not {_shown(message.method)}")
        raise RequestError(404, f"there is no {_shown(path)} here (has: {', '.join(sorted(ROUTES))})")

    def _admit(self, message: Message) -> None:
        settings, batcher = self.service.settings, self.service.batcher
        length = int(message.length) if message.length else 0  # the parser has seen that it is a number
        if length > settings.max_body_bytes:
            raise RequestError(413, too_large(f"{length:,} bytes", settings.max_body_bytes))
        if self.active > settings.max_queue or not batcher.has_room(length):
            raise self.full()
        message.arriving = True
        batcher.arriving += 1

    def take(self, message: Message, data: bytes) -> None:
        """Keep a part of a body, if there is room for it."""
        assert message.route is not None
        most = self.service.settings.max_body_bytes
        if message.size > most:
            message.refusal = RequestError(413, too_large("more", most))
        elif message.route.takes_body and not self.service.batcher.reserve(len(data)):
            message.refusal = self.full()
        if message.refusal is not None:
            self.release(message)
        elif message.route.takes_body:
            message.reserved += len(data)
            message.parts.append(data)

    def whole(self, message: Message) -> None:
        """A request is not waited for any more: it is here, or it takes too long."""
        if message.arriving:
            message.arriving = False
            self.service.batcher.arriving -= 1

    def release(self, message: Message) -> None:
        """Give back what is held for a request."""
        self.whole(message)
        if message.reserved:
            self.service.batcher.release(message.reserved)
            message.reserved = 0
        message.parts = []

    def finish(self, message: Message) -> None:
        """A request is answered, or nobody is left to answer."""
        self.release(message)
        if message.active:
            message.active = False
            self.active -= 1

    def handle(self, message: Message, connection: Connection) -> None:
        """Answer a request, at once or later."""
        self._activate(message)
        if message.refusal is not None:
            self._reply(message, connection, message.refusal.answer())
            return
        assert message.route is not None
        request = HttpRequest(message.body(), message.kind, message.accept, message.query, message.started)
        try:
            given = message.route.answer(request)
        except Exception as error:
            self._reply(message, connection, _failed(error))
            return
        if isinstance(given, Answer):
            self._reply(message, connection, given)
            return
        future: asyncio.Future[Answer] = asyncio.ensure_future(given, loop=self.service.loop)
        self._running.add(future)
        future.add_done_callback(partial(self._done, message, connection))

    def _done(self, message: Message, connection: Connection, future: asyncio.Future[Answer]) -> None:
        self._running.discard(future)
        if future.cancelled():
            self.finish(message)
            return
        error = future.exception()
        self._reply(message, connection, future.result() if error is None else _failed(error))

    def _reply(self, message: Message, connection: Connection, answer: Answer) -> None:
        self.finish(message)
        connection.answer(message, answer)
        moment = now()
        self.service.metrics.answered(message.path, answer.status, moment - message.started)
        if not self.active and self._may_stay_awake:
            self._awake_until = moment + AWAKE_S
            if not self.awake:
                self.awake = True
                self.service.loop.call_soon(self._stay_awake)

    def _stay_awake(self) -> None:
        """Have the event loop look for requests without sleeping, for a moment after the last answer."""
        self.awake = not self.active and now() < self._awake_until
        if self.awake:
            self.service.loop.call_soon(self._stay_awake)

    def _sweep(self) -> None:
        self.service.loop.call_later(SWEEP_S, self._sweep)
        self.heads.date = f"date: {formatdate(usegmt=True)}\r\n".encode()
        self.service.batcher.forget_late()
        self.service.metrics.set("recgrad_resident_bytes", self._memory.look())
        moment, limit_s = now(), self.service.settings.body_timeout_s
        for connection in list(self._connections):
            connection.sweep(moment, limit_s)


def _failed(error: BaseException) -> Answer:
    if isinstance(error, RequestError):
        return error.answer()
    logger.error("a request failed", exc_info=error)
    return RequestError(500, "the server failed; its log has more").answer()


def _shown(text: Any) -> str:
    """What a client sent, cut and safe to print."""
    return ascii(text[:80].decode("latin-1"))


def too_large(size: str, most: int) -> str:
    """What is wrong with a body beyond the limit."""
    return f"the body has {size}, the limit is {most:,} bytes (--max_body_mb); send fewer rows at a time"
