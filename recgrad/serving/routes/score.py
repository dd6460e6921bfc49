"""`POST /v1/score`."""

from __future__ import annotations

from recgrad.serving.answers import Answer
from recgrad.serving.routes._route import ROUTES, Route
from recgrad.serving.service import HttpRequest


@ROUTES.register("POST /v1/score")
class Score(Route):
    """Scores of rows, or of one user with many items."""

    takes_body = True

    async def answer(self, request: HttpRequest) -> Answer:
        return await self.service.score(request)
