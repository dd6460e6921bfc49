"""Listens at an address that other workers share, and has an event loop answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from recgrad.serving.app import Application
from recgrad.serving.connection import Connection

T = TypeVar("T")

BACKLOG = 1024
"""Connections that the system holds until the worker has a moment to take them."""


async def listen(app: Application, host: str, port: int) -> asyncio.AbstractServer:
    """Serve an application at an address until the server is closed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    own = socket.socket(family, socket.SOCK_STREAM)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    own.bind((host, port))
    app.start()
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: Connection(app), sock=own, backlog=BACKLOG)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on an event loop of its own."""
    return uvloop.run(main)
