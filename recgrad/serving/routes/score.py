"""`POST /v1/score`."""

from __future__ import annotations

from collections.abc import Awaitable

from recgrad.serving.answers import Answer
from recgrad.serving.routes._route import ROUTES, Route
from recgrad.serving.service import HttpRequest


@ROUTES.register("POST /v1/score")
class Score(Route):
    """Scores of rows, or of one user with many items."""

    takes_body = True

    def answer(self, request: HttpRequest) -> Answer | Awaitable[Answer]:
        return self.service.score(request)
