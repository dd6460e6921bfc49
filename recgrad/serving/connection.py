"""One client's connection: HTTP/1.1 is read within limits, answers are written in the order of the requests.

llhttp parses (through httptools). A request is handled as soon as it is whole, on the thread that read it.
Requests that follow on the same connection before it is answered wait for their turn, and nothing more is
read from a client meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol, cast

import httptools

from recgrad.serving.answers import Answer, RequestError
from recgrad.serving.metrics import OTHER
from recgrad.serving.service import now

if TYPE_CHECKING:
    from recgrad.serving.routes import Route

MAX_HEAD_BYTES = 1 << 16
"""Of a request's line and headers; and so many, beside 8 times the body, may chunks have around it."""
MAX_AHEAD = 128
"""Requests that may be sent ahead on one connection, before those before them are answered."""
MAX_DISCARDED_BYTES = 1 << 28
"""Of a body that is read only to be thrown away; who sends more loses the connection."""
KEEP_ALIVE_S = 75.0
"""How long a connection may idle between requests; longer than proxies let it, so that they close first."""
ARRIVING_S = 0.25
"""A request whose body takes longer is not waited for by others."""
LINGER_S = 2.0
"""How long what a client still sends is thrown away, so that it reads its answer before the end."""

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NAMED = {b"content-type": "kind", b"accept": "accept", b"content-length": "length", b"expect": "expect"}


class Message:
    """A request while it is read, and until it is answered.

    Attributes:
        started: when its first byte came.
        target: what follows the method.
        kind, accept, length, expect: headers.
        method: GET, POST …
        route: what answers; None where there is none, and then there is a refusal.
        path: what it is counted as.
        query: of the target.
        refusal: why it is not handled; what is left of its body is thrown away.
        parts: of the body.
        size: bytes of the body so far.
        reserved: bytes that the queue has room for on its behalf.
        headed: its headers are whole.
        active: it is counted among the requests without an answer.
        arriving: it is counted among those whose bodies will soon be here.
        keep: the connection stays open after it.
        old: it is HTTP/1.0, which must be told that the connection stays.
    """

    __slots__ = (
        "accept", "active", "arriving", "expect", "headed", "keep", "kind", "length", "method", "old",
        "parts", "path", "query", "refusal", "reserved", "route", "size", "started", "target",
    )  # fmt: skip

    def __init__(self) -> None:
        self.started = now()
        self.target = self.method = b""
        self.kind = self.accept = self.length = self.expect = self.query = ""
        self.path = OTHER
        self.route: Route | None = None
        self.refusal: RequestError | None = None
        self.parts: list[bytes] = []
        self.size = self.reserved = 0
        self.headed = self.active = self.arriving = self.old = False
        self.keep = True

    def body(self) -> bytes:
        """What was read."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


class Owner(Protocol):
    """What a connection asks of the application that it belongs to.

    Attributes:
        heads: of answers.
    """

    heads: Heads

    @property
    def draining(self) -> bool:
        """Whether connections are closed after their answers."""

    def opened(self, connection: Connection) -> bool:
        """Take a connection up; False if there are too many."""

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""

    def full(self) -> RequestError:
        """The answer where there is no room."""

    def begin(self, message: Message, *, ahead: bool) -> None:
        """Decide by its head whether a request is taken up."""

    def take(self, message: Message, data: bytes) -> None:
        """Keep a part of a body, if there is room for it."""

    def whole(self, message: Message) -> None:
        """A request is not waited for any more."""

    def release(self, message: Message) -> None:
        """Give back what is held for a request."""

    def finish(self, message: Message) -> None:
        """A request is answered, or nobody is left to answer."""

    def handle(self, message: Message, connection: Connection) -> None:
        """Answer a request, at once or later."""


class Connection(asyncio.Protocol):
    """What one client sends, and what it is answered.

    Args:
        app: decides about requests and answers them.
    """

    def __init__(self, app: Owner) -> None:
        self._app = app
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._message: Message | None = None  # that is being read
        self._ready: deque[Message] = deque()  # whole, and not yet begun
        self._current: Message | None = None  # that has no answer yet
        self._advancing = self._paused = self._blocked = self._lingering = False
        self._ended = False  # nothing that comes is read any more
        self._gone = False  # nothing will come any more
        self._used = False
        self._since = now()  # when it was opened, last answered, or blocked
        self._around = 0  # bytes of the message that are no body

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._app.opened(self):
            self._refuse(self._app.full())

    def data_received(self, data: bytes) -> None:
        if self._ended:
            self._around += len(data)
            if self._around > MAX_DISCARDED_BYTES:
                self._transport.abort()
            return
        self._around += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._ended = True  # it is answered as usual, but what follows would be another protocol
        except httptools.HttpParserError as error:
            self._refuse(RequestError(400, f"the request is no HTTP/1.1: {error}"))
        message = self._message
        if message is not None and self._around > MAX_HEAD_BYTES + 8 * message.size:
            what = "there is too much around its chunks" if message.headed else "its head is too long"
            more = f"{what}; the limit is {MAX_HEAD_BYTES:,} bytes"
            self._refuse(RequestError(400 if message.headed else 431, more))
        self._advance()

    def eof_received(self) -> bool:
        self._ended = self._gone = True
        self._drop_unfinished()
        return not self._lingering and (self._current is not None or bool(self._ready))

    def connection_lost(self, error: Exception | None) -> None:
        self._app.closed(self)
        self._ended = self._gone = True
        self._drop_unfinished()
        for message in self._ready:
            self._app.finish(message)
        self._ready.clear()
        self._parser = None  # it refers to this object

    def pause_writing(self) -> None:
        self._blocked = True
        self._since = now()

    def resume_writing(self) -> None:
        self._blocked = False
        self._advance()

    # What the parser calls.

    def on_message_begin(self) -> None:
        if len(self._ready) >= MAX_AHEAD:
            self._advance()
            if len(self._ready) >= MAX_AHEAD:
                ahead = f"more than {MAX_AHEAD} requests were sent ahead of their answers; wait for some"
                self._refuse(RequestError(429, ahead))
        if not self._ended:
            self._message = Message()
            self._used = True

    def on_url(self, target: bytes) -> None:
        if self._message is not None:
            self._message.target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        message = self._message
        if message is not None and not message.headed:  # what follows the body is not looked at
            known = _NAMED.get(name.lower())
            if known is not None:
                setattr(message, known, value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        message = self._message
        if message is None or self._ended:
            return
        message.headed = True
        message.method = self._parser.get_method()
        message.keep = self._parser.should_keep_alive()
        message.old = self._parser.get_http_version() == "1.0"
        self._around = 0
        self._app.begin(message, ahead=self._current is not None or bool(self._ready))
        if message.expect:
            self._expected(message)

    def on_body(self, data: bytes) -> None:
        self._around -= len(data)
        message = self._message
        if message is None:
            return
        message.size += len(data)
        if message.refusal is None:
            self._app.take(message, data)
        elif message.size > MAX_DISCARDED_BYTES:
            self._refuse(message.refusal)

    def on_message_complete(self) -> None:
        self._around = 0
        message, self._message = self._message, None
        if message is not None:
            self._app.whole(message)
            self._ready.append(message)

    # What the application calls.

    def answer(self, message: Message, answer: Answer) -> None:
        """Write the answer of the message that was handled."""
        self._current = None
        self._since = now()
        if self._transport.is_closing():
            return
        keep = message.keep and not self._app.draining and not (self._ended and not self._ready)
        self._transport.write(self._app.heads.bytes_of(message, answer, keep=keep))
        if not keep:
            self._end()
        elif not self._advancing:
            self._advance()

    def sweep(self, moment: float, limit_s: float) -> None:
        """End what has taken too long: a client that sends or reads too slowly, or not at all."""
        waited = moment - self._since
        message = self._message
        if message is not None and message.arriving and moment - message.started > ARRIVING_S:
            self._app.whole(message)
        if self._lingering:
            if waited > LINGER_S:
                self._transport.abort()
        elif self._blocked:
            if waited > limit_s:
                self._transport.abort()
        elif self._current is not None or self._ready:
            if message is not None:
                message.started = moment  # it is not read meanwhile
        elif message is not None:
            if moment - message.started > limit_s:
                what = "body" if message.headed else "request's head"
                late = RequestError(408, f"the {what} did not arrive within {limit_s:g} s; send it faster")
                self._refuse(message.refusal or late)
                self._advance()
        elif waited > (KEEP_ALIVE_S if self._used else limit_s) or self._app.draining:
            self._transport.close()

    # The rest.

    def _expected(self, message: Message) -> None:
        """Answer a client that asks before it sends its body."""
        if message.expect.lower() != "100-continue":
            self._refuse(
                RequestError(417, f"'expect: {message.expect[:80]}' is not known here; leave it out")
            )
        elif message.refusal is not None:
            self._refuse(message.refusal)
        elif self._current is None and not self._ready:
            self._transport.write(_CONTINUE)

    def _refuse(self, error: RequestError) -> None:
        """Answer what is being read with an error, as the last of this connection."""
        message, self._message = self._message or Message(), None
        self._app.release(message)
        message.refusal, message.keep = error, False
        self._ended = True
        self._around = 0
        self._ready.append(message)
        self._advance()

    def _advance(self) -> None:
        """Begin what is whole and has its turn."""
        if self._advancing:
            return
        self._advancing = True
        while self._ready and self._current is None and not self._blocked:
            message = self._current = self._ready.popleft()
            self._app.handle(message, self)
        self._advancing = False
        if self._transport.is_closing():
            return
        if bool(self._ready) != self._paused:
            self._paused = not self._paused
            if self._paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        if self._ended and not self._lingering and self._current is None and not self._ready:
            self._end()

    def _end(self) -> None:
        """Close after what was written; a client that still sends must read its answer first."""
        for message in self._ready:
            self._app.finish(message)
        self._ready.clear()
        unread = self._ended or self._message is not None
        self._drop_unfinished()
        self._ended = True
        if not unread or self._gone:
            self._transport.close()
            return
        self._lingering = True
        self._transport.write_eof()
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _drop_unfinished(self) -> None:
        message, self._message = self._message, None
        if message is not None:
            self._app.finish(message)


class Heads:
    """Heads of answers; those that recur are made once.

    Attributes:
        date: the header of that name, kept up by whoever owns this.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], bytes] = {}
        self.date = b""

    def bytes_of(self, message: Message, answer: Answer, *, keep: bool) -> bytes:
        """The answer as it is sent."""
        first = self._known.get((answer.status, answer.kind))
        if first is None:
            phrase = _PHRASES.get(answer.status, "")
            line = f"HTTP/1.1 {answer.status} {phrase}\r\ncontent-type: {answer.kind}\r\ncontent-length: "
            first = self._known[answer.status, answer.kind] = line.encode()
        more = self.date
        if answer.headers:
            more += "".join(f"{name}: {value}\r\n" for name, value in answer.headers).encode()
        if not keep:
            more += b"connection: close\r\n"
        elif message.old:
            more += b"connection: keep-alive\r\n"
        body = b"" if message.method == b"HEAD" else answer.body
        return b"%b%d\r\n%b\r\n%b" % (first, len(answer.body), more, body)
