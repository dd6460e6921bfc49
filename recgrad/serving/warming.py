"""The first scores of a model, before it is served: code is compiled and pages are read then."""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from recgrad.serving.answers import RequestError
from recgrad.serving.columns import json_value
from recgrad.serving.requests import decode
from recgrad.serving.scoring import Body, score_bodies
from recgrad.serving.served import Served

logger = logging.getLogger("recgrad.serving")


def warm_up(served: Served) -> float:
    """Score golden rows in the way that requests are, alone and together; returns the seconds of a row."""
    rows = golden_rows(served.scorer.golden)
    seconds = 0.0
    for some in (rows[:1], rows):
        body = msgspec.json.encode({"rows": some})
        started = time.perf_counter()
        result = score_bodies(served, [_body(body)] * 2, max(len(some), 1))[0]
        seconds = time.perf_counter() - started
        if isinstance(result, RequestError):
            logger.info("golden rows are not scored as JSON: %s", result.message)
    return seconds / max(2 * len(rows), 1)


def golden_rows(golden: pa.Table) -> list[dict[str, object]]:
    """The golden rows as a client would send them; 32-bit floats in the fewest digits that mean them."""
    kinds = {field.name: field.type for field in golden.schema}
    return [
        {name: json_value(_shortest(value, kinds[name])) for name, value in row.items()}
        for row in golden.to_pylist()
    ]


def _shortest(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, float) and pa.types.is_float32(kind):
        return float(str(np.float32(value)))
    if isinstance(value, list) and hasattr(kind, "value_type"):
        return [_shortest(item, kind.value_type) for item in value]
    return value


def _body(data: bytes) -> Body:
    return Body(data, "application/json", lambda: decode(data, "application/json", max_rows=1 << 30))
