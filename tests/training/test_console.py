"""What a run shows on a terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from recgrad.training.hooks.console import ProgressBar
from recgrad.training.hooks.log import LogRecord

RECORD = LogRecord(
    step=60,
    epoch=0,
    losses={"binary_cross_entropy": 0.63307, "total": 0.63307},
    rates={"dense": 0.003, "sparse": 0.05},
    metrics={"auc": 0.6638},
    grad_norm=None,
    samples_per_sec=12_345.0,
    data_wait_share=0.25,
    samples=6_000,
    skipped=1,
    resident_bytes=1_234_000_000,
    table_bytes=800_000_000,
    cpu_share=0.875,
)


@pytest.mark.parametrize("columns", [80, 200])
def test_the_bar_has_room_for_all_it_tells(columns: int) -> None:
    console = Console(file=io.StringIO(), width=columns)
    bar = ProgressBar(console)
    trainer: Any = SimpleNamespace(
        state=SimpleNamespace(step=0), length=SimpleNamespace(num_steps=12_000, num_epochs=None)
    )
    bar.start(trainer)
    report: Any = SimpleNamespace(step=60)
    bar.step(trainer, report)
    bar.record(trainer, RECORD)
    with console.capture() as captured:
        console.print(bar._progress.get_renderable())
    bar.close()
    shown = captured.get()
    for part in ("60/12,000", "left", "binary_cross_entropy 0.63307", "auc 0.6638", "lr[dense] 0.003"):
        assert part in shown
    for part in (
        "lr[sparse] 0.05",
        "12,345 samples/s",
        "data wait 25%",
        "memory 1.23 GB",
        "CPU 88%",
        "1 skipped",
    ):
        assert part in " ".join(shown.split())
