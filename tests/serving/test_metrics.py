from __future__ import annotations

import re
from pathlib import Path

from recgrad.serving.metrics import Metrics


def test_any_worker_answers_for_all(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    one, other = (Metrics(path, ["/a"], workers=2, worker=at) for at in range(2))
    one.answered("/a", 200, 0.003)
    other.answered("/a", 200, 0.003)
    other.answered("/a", 429, 100.0)
    one.set("recgrad_model_loaded_seconds", 5)
    other.set("recgrad_model_loaded_seconds", 7)
    other.scored(0.003, 1, 1)
    again = Metrics(path, ["/a"], workers=2, worker=0)  # a worker that was replaced counts on
    again.count("recgrad_rows_total", 3)
    assert one.text() == other.text() == again.text()
    text = one.text()
    assert 'recgrad_requests_total{route="/a",status="200"} 2\n' in text
    assert 'recgrad_requests_total{route="/a",status="429"} 1\n' in text
    assert "recgrad_model_loaded_seconds 7\n" in text
    assert "recgrad_rows_total 3\n" in text
    assert 'recgrad_request_seconds_bucket{route="/a",le="0.0025"} 0\n' in text
    assert 'recgrad_request_seconds_bucket{route="/a",le="0.005"} 2\n' in text
    assert 'recgrad_request_seconds_bucket{route="/a",le="10"} 2\n' in text
    assert 'recgrad_request_seconds_bucket{route="/a",le="+Inf"} 3\n' in text
    assert 'recgrad_request_seconds_count{route="/a"} 3\n' in text
    assert 'recgrad_request_seconds_sum{route="/a"} 100.006\n' in text
    assert 'recgrad_batch_rows_bucket{le="1"} 1\n' in text


def test_the_text_is_what_prometheus_reads() -> None:
    metrics = Metrics(None, ["/a"])
    metrics.answered("/a", 200, 0.1)
    line = re.compile(r'^[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+$')
    names: set[str] = set()
    for text in metrics.text().splitlines():
        if text.startswith("# TYPE "):
            name = text.split()[2]
            assert name not in names
            names.add(name)
        elif not text.startswith("# HELP "):
            assert line.match(text), text
    assert len(names) == len(metrics.families)
