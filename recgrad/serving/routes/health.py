"""`GET /healthz` and `GET /readyz`."""

from __future__ import annotations

from recgrad.serving.answers import Answer, json_answer
from recgrad.serving.routes._route import ROUTES, Route
from recgrad.serving.service import HttpRequest


@ROUTES.register("GET /healthz")
class Healthz(Route):
    """Whether the worker is alive: 200, or 503 when it should be started again."""

    def answer(self, request: HttpRequest) -> Answer:
        alive = self.service.batcher.alive
        return json_answer({"status": "alive" if alive else "stuck"}, 200 if alive else 503)


@ROUTES.register("GET /readyz")
class Readyz(Route):
    """Whether the worker takes requests: 200, or 503 while it drains."""

    def answer(self, request: HttpRequest) -> Answer:
        service = self.service
        if service.draining:
            return json_answer({"status": "draining"}, 503)
        return json_answer({"status": "ready", "model": service.holder.current.version})
