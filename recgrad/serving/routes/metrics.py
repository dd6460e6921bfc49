"""`GET /metrics`."""

from __future__ import annotations

from recgrad.serving.answers import Answer
from recgrad.serving.routes._route import ROUTES, Route
from recgrad.serving.service import HttpRequest


@ROUTES.register("GET /metrics")
class MetricsText(Route):
    """Counters of all workers, for Prometheus."""

    def answer(self, request: HttpRequest) -> Answer:
        text = self.service.metrics.text()
        return Answer(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")
