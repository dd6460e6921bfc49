"""The page of benchmarks says what a run gave, and what it did not."""

from __future__ import annotations

import importlib.util
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "benchmarks" / "results" / "page.py"


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("benchmark_page", PAGE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    yield spec.loader.exec_module(module) or module
    del sys.modules[spec.name]


def program(folder, name, body):
    path = folder / f"{name}.py"
    path.write_text(f'"""What {name} compares."""\nimport sys\nout = sys.argv[2]\n{body}\n')
    return path


def test_bars_failures_and_what_was_left_out(page, tmp_path):
    bars = (
        '[{"name": "speed", "ratio": 2.5, "goal": 2, "holds": true}, '
        '{"name": "cost", "ratio": 1.5, "goal": 1.1, "holds": false}, '
        '{"name": "asked for", "ratio": 0.0, "goal": 1, "holds": false}, '
        '{"name": "gained", "ratio": 0.1, "goal": 0, "holds": true}, '
        '{"name": "failures", "ratio": 0.0, "goal": 0, "holds": true}]'
    )
    good = program(tmp_path, "good", f"open(out, 'w').write({bars!r})")
    bad = program(tmp_path, "bad", "sys.exit('no such data')")
    slow = program(tmp_path, "slow", "import threading\nthreading.Event().wait()")
    runs = [page.run_program(good, 60), page.run_program(bad, 60), page.run_program(slow, 0.5)]
    text = page.page(runs, ["other"], 1.25, datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc))
    assert "3 of 4 bars hold." in text
    assert "| speed | 2.5 | ≥ 2 | holds |" in text
    assert "| cost | 1.5 | ≤ 1.1 | **missed** |" in text
    assert "| asked for | 0 | ≥ 1 | not measured |" in text
    assert "| gained | 0.1 | ≥ 0 | holds |" in text
    assert "| failures | 0 | ≤ 0 | holds |" in text
    assert "What good compares." in text
    assert "no such data" in text
    assert "longer than 0.5 s" in text
    assert "`other.py`" in text
    assert "2026-01-02 03:04 UTC" in text
