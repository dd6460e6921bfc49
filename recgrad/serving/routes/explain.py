"""`POST /v1/explain`."""

from __future__ import annotations

from typing import Any

from recgrad.errors import RecgradError
from recgrad.serving.answers import Answer, RequestError, json_answer
from recgrad.serving.part import BadRowsError
from recgrad.serving.routes._route import ROUTES, Route
from recgrad.serving.scoring import bad_rows_error, model_table
from recgrad.serving.service import HttpRequest

MAX_ROWS = 16
"""Each feature of each row is a row to score."""


@ROUTES.register("POST /v1/explain")
class Explain(Route):
    """How each score moves when a feature is missing, for a few rows."""

    takes_body = True

    async def answer(self, request: HttpRequest) -> Answer:
        return await self.service.run(self._explain, request)

    def _explain(self, request: HttpRequest) -> Answer:
        served = self.service.holder.current
        read = self.service.decode(request)
        if read.size > MAX_ROWS:
            raise RequestError(
                413, f"{read.size:,} rows are more than the {MAX_ROWS} that are explained at a time"
            )
        table = model_table(served, read)
        try:
            scores = served.scorer.score(table)
            moved = served.scorer.explain(table)
        except BadRowsError as error:
            raise bad_rows_error(error.faults.by_row()) from error
        except RecgradError as error:
            raise RequestError(422, str(error)) from error
        answer: dict[str, Any] = {
            "model": served.version,
            "scores": {name: values.tolist() for name, values in scores.items()},
            "moved": {
                output: {feature: change.tolist() for feature, change in features.items()}
                for output, features in moved.items()
            },
        }
        return json_answer(answer)
