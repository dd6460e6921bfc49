"""What a run takes of its machine, as its log has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import recgrad
from recgrad.config import PipelineConfig
from recgrad.training.hooks import facts
from recgrad.training.hooks.facts import UsageMeter, describe_bytes, resident_bytes


def test_memory_that_is_taken_is_resident() -> None:
    # In a process of its own: what earlier tests have left here may be freed at any moment.
    program = f"""
import numpy as np
from {resident_bytes.__module__} import resident_bytes
before = resident_bytes()
taken = np.ones(64 << 20, np.uint8)
print(resident_bytes() - before > taken.nbytes // 2, before > 1 << 20)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout == "True True\n", done.stderr


def test_the_most_it_had_where_proc_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = resident_bytes()
    monkeypatch.setattr(facts, "_STATM", tmp_path / "statm")
    most = resident_bytes()
    assert now is not None
    assert most is not None
    assert most > now // 2


def test_share_of_the_cores_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "usable_cores", lambda: 8)
    clock, cpu = [100.0], [5.0]
    monkeypatch.setattr(facts.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(facts.time, "process_time", lambda: cpu[0])
    meter = UsageMeter(processes=2)  # each has four of the cores
    clock[0], cpu[0] = 102.0, 9.0
    assert meter.look().cpu_share == pytest.approx(0.5)
    clock[0], cpu[0] = 103.0, 13.0
    assert meter.look().cpu_share == pytest.approx(1.0)
    clock[0] = 104.0
    assert meter.look().cpu_share == 0


def test_sizes_in_words() -> None:
    assert [describe_bytes(size) for size in (812_300_000, 1_254_000_000)] == ["812 MB", "1.25 GB"]


def test_events_carry_memory_and_cores(config: PipelineConfig) -> None:
    result = recgrad.train(config)
    events = [json.loads(line) for line in (result.model_dir / "events.jsonl").read_text().splitlines()]
    records = [event for event in events if event["kind"] == "train"]
    assert len(records) > 1
    for record in records:
        assert record["resident_bytes"] > record["table_bytes"] > 0
        assert record["cpu_share"] >= 0
    assert any(record["cpu_share"] > 0 for record in records)
