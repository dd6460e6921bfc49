"""What a route is, and the registry of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import ClassVar

from recgrad.registry import Registry
from recgrad.serving.answers import Answer
from recgrad.serving.service import HttpRequest, Service


class Route(ABC):
    """An answer to one method and path; the first line of its docstring is what `GET /v1` says of it.

    Args:
        service: of the worker.
    """

    takes_body: ClassVar[bool] = False
    """Whether requests have a body; it is then read before `answer` is called, within the limits."""

    def __init__(self, service: Service) -> None:
        self.service = service

    @abstractmethod
    def answer(self, request: HttpRequest) -> Answer | Awaitable[Answer]:
        """The answer, at once if it is quick; a RequestError that is raised is one too."""


ROUTES: Registry[type[Route]] = Registry("route", "recgrad.serving.routes")
