"""The application that granian calls: finds the route, reads the body within limits, answers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]

from recgrad.serving.answers import Answer, RequestError
from recgrad.serving.metrics import OTHER
from recgrad.serving.routes import ROUTES, Route
from recgrad.serving.service import HttpRequest, Service, now

logger = logging.getLogger("recgrad.serving")

FULL = "the server holds as many requests as it may (--max_queue, --max_queue_mb); send again later"
MOST_DISCARDED = 1 << 28
"""Bytes of a body that are read only to be thrown away; who sends more loses the connection."""
SWEEP_S = 0.25
"""How often requests that are late are looked for."""


class Application:
    """Answers requests with the routes of the registry.

    Args:
        service: of the worker.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._routes: dict[tuple[str, str], Route] = {}
        self._paths: dict[str, list[str]] = {}
        for name, route in ROUTES.items():
            method, _, path = name.partition(" ")
            self._routes[method, path] = route(service)
            self._paths.setdefault(path, []).append(method)
        self._reading: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self.active = 0
        """Requests without an answer."""

    def start(self) -> None:
        """Begin to look for late requests."""
        self.service.loop.call_later(SWEEP_S, self._sweep)

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Answer one request."""
        started = now()
        self.active += 1
        try:
            try:
                answer = await self._answer(scope, protocol, started)
            except _UnreadError as error:
                # A client that still sends would see its connection break instead of the answer.
                if scope.headers.get("expect") is None:
                    await self._discard(protocol, started)
                answer = error.answer()
        except RequestError as error:
            answer = error.answer()
        except ProtocolClosed:
            return  # the client has gone, and nobody is left to answer
        except Exception:
            logger.exception("a request failed")
            answer = RequestError(500, "the server failed; its log has more").answer()
        finally:
            self.active -= 1
        headers = [("content-type", answer.kind), *answer.headers]
        if self.service.draining:
            headers.append(("connection", "close"))
        body = b"" if scope.method == "HEAD" else answer.body
        protocol.response_bytes(answer.status, headers, body)
        path = scope.path if scope.path in self._paths else OTHER
        self.service.metrics.answered(path, answer.status, now() - started)

    async def _answer(self, scope: Any, protocol: Any, started: float) -> Answer:
        route = self._find(scope.method, scope.path)
        if not route.takes_body:
            return await route.answer(HttpRequest(b"", "", "", scope.query_string, started))
        headers = scope.headers
        body = await self._body(headers.get("content-length"), protocol, started)
        request = HttpRequest(
            body,
            headers.get("content-type") or "",
            headers.get("accept") or "",
            scope.query_string,
            started,
        )
        try:
            return await route.answer(request)
        finally:
            self.service.batcher.release(len(body))

    def _find(self, method: str, path: str) -> Route:
        route = self._routes.get(("GET" if method == "HEAD" else method, path))
        if route is not None:
            return route
        methods = self._paths.get(path)
        if methods:
            raise _UnreadError(405, f"{path} takes {', '.join(sorted(methods))}, not {method[:20]}")
        known = ", ".join(sorted(ROUTES))
        raise _UnreadError(404, f"there is no {path[:80]!r} here (has: {known})")

    async def _body(self, length: str | None, protocol: Any, started: float) -> bytes:
        """The body, for whose bytes room is reserved; the caller releases it."""
        settings, batcher = self.service.settings, self.service.batcher
        most = settings.max_body_bytes
        if length is not None and length.isdecimal() and int(length) > most:
            raise _UnreadError(413, too_large(f"{int(length):,} bytes", most))
        task = asyncio.current_task()
        assert task is not None
        reserved = int(length) if length is not None and length.isdecimal() else 0
        if self.active > settings.max_queue or not batcher.reserve(reserved):
            raise _UnreadError(429, FULL)
        batcher.arriving += 1
        self._reading[task] = started + settings.body_timeout_s
        kept = False
        try:
            if reserved:
                body: bytes = await protocol()
            else:
                body, reserved = await self._chunks(protocol, most)
            kept = True
            if len(body) != reserved:
                batcher.release(reserved - len(body))
            return body
        except asyncio.CancelledError:
            if task not in self._late:
                raise
            if hasattr(task, "uncancel"):
                task.uncancel()
            raise RequestError(
                408, f"the body did not arrive within {settings.body_timeout_s:g} s; send it faster"
            ) from None
        finally:
            batcher.arriving -= 1
            self._reading.pop(task, None)
            self._late.discard(task)
            if not kept:
                batcher.release(reserved)

    async def _chunks(self, protocol: Any, most: int) -> tuple[bytes, int]:
        """A body whose length is not said in advance, and the room that is reserved for it."""
        batcher = self.service.batcher
        parts: list[bytes] = []
        total = kept = 0
        refused: RequestError | None = None
        try:
            async for part in protocol:
                total += len(part)
                if refused is None and total > most:
                    refused = RequestError(413, too_large("more", most))
                elif refused is None and not batcher.reserve(len(part)):
                    refused = RequestError(429, FULL)
                elif refused is None:
                    kept += len(part)
                    parts.append(part)
                if refused is not None:
                    parts.clear()
                    if total > MOST_DISCARDED:
                        raise refused
            if refused is not None:
                raise refused
        except BaseException:
            batcher.release(kept)
            raise
        return b"".join(parts), kept

    async def _discard(self, protocol: Any, started: float) -> None:
        """Read what is left of a body and keep none of it."""
        task = asyncio.current_task()
        assert task is not None
        self._reading[task] = started + self.service.settings.body_timeout_s
        total = 0
        try:
            async for part in protocol:
                total += len(part)
                if total > MOST_DISCARDED:
                    return
        except asyncio.CancelledError:
            if task not in self._late:
                raise
            if hasattr(task, "uncancel"):
                task.uncancel()
        except Exception as error:
            logger.debug("a body broke off: %s", error)
        finally:
            self._reading.pop(task, None)
            self._late.discard(task)

    def _sweep(self) -> None:
        self.service.loop.call_later(SWEEP_S, self._sweep)
        self.service.batcher.forget_late()
        self.service.metrics.set("recgrad_resident_bytes", resident_bytes())
        moment = now()
        for task, deadline in list(self._reading.items()):
            if deadline < moment and task not in self._late:
                self._late.add(task)
                task.cancel()


class _UnreadError(RequestError):
    """An answer that is given before the body was read."""


def too_large(size: str, most: int) -> str:
    """What is wrong with a body beyond the limit."""
    return f"the body has {size}, the limit is {most:,} bytes (--max_body_mb); send fewer rows at a time"


def resident_bytes() -> int:
    """Resident memory of this process."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * 4096
    except (OSError, ValueError):
        return 0
