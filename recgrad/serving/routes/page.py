"""`GET /`: a page to try the model with."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from recgrad.serving.answers import Answer
from recgrad.serving.routes._route import ROUTES, Route
from recgrad.serving.service import HttpRequest, Service


@ROUTES.register("GET /")
class Page(Route):
    """A page with the model's card and a form to score rows with."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        html = resources.files("recgrad.serving.page").joinpath("index.html").read_text("utf-8")
        self._answer = Answer(200, html.encode(), "text/html; charset=utf-8", page_headers(html))

    def answer(self, request: HttpRequest) -> Answer:
        return self._answer


def page_headers(html: str) -> tuple[tuple[str, str], ...]:
    """Headers that let the page run its own script, talk to this server, and nothing else."""
    scripts = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    )
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return (
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
        ("cache-control", "no-cache"),
    )
