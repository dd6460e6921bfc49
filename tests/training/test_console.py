"""What a run shows on a terminal."""

from __future__ import annotations

import io
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from google.protobuf import text_format
from rich.console import Console

from recgrad.config.proto.optimizer_pb2 import DenseOptimizer
from recgrad.optim.groups import build_dense_optimizers
from recgrad.training.hook import StepReport
from recgrad.training.hooks.console import PlainLines, ProgressBar
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


REPORT = StepReport(
    step=1,
    losses={"binary_cross_entropy": 0.69315, "total": 0.69315},
    rates={"dense": 0.001, "sparse": 0.05},
    grad_norm=None,
    samples=100,
    data_wait_secs=0.0,
    step_secs=0.1,
)


class Screen:
    """A bar of 12,000 steps on a console of some columns."""

    def __init__(self, columns: int = 80) -> None:
        self.console = Console(file=io.StringIO(), width=columns)
        self.bar = ProgressBar(self.console)
        length = SimpleNamespace(num_steps=12_000, num_epochs=None)
        self.trainer: Any = SimpleNamespace(state=SimpleNamespace(step=0, stopped=""), length=length)
        self.bar.start(self.trainer)

    def shown(self) -> list[str]:
        """The lines that the bar shows now."""
        with self.console.capture() as captured:
            self.console.print(self.bar._progress.get_renderable())
        return captured.get().splitlines()


@pytest.mark.parametrize("columns", [80, 200])
def test_the_bar_has_room_for_all_it_tells(columns: int) -> None:
    screen = Screen(columns)
    screen.bar.step(screen.trainer, replace(REPORT, step=60))
    screen.bar.record(screen.trainer, RECORD)
    lines = screen.shown()
    screen.bar.close()
    assert max(map(len, lines)) <= columns
    assert any("12,345 samples/s" in line for line in lines)  # a number stays with its unit
    shown = " ".join(" ".join(lines).split())
    for part in ("60/12,000", "left", "binary_cross_entropy 0.63307", "auc 0.6638", "lr[dense] 0.003"):
        assert part in shown
    wanted = (
        "lr[sparse] 0.05",
        "12,345 samples/s",
        "data wait 25%",
        "memory 1.23 GB",
        "CPU 88%",
        "1 skipped",
    )
    for part in wanted:
        assert part in shown


def test_the_loss_stands_below_the_bar_from_the_first_step() -> None:
    screen = Screen()
    screen.bar.step(screen.trainer, REPORT)
    assert screen.shown()[1].strip() == "binary_cross_entropy 0.69315  lr[dense] 0.001  lr[sparse] 0.05"
    losses = {"ctr": 0.5, "cvr": 0.25, "total": 0.75}
    screen.bar.step(screen.trainer, replace(REPORT, step=2, losses=losses))
    assert screen.shown()[1].startswith("loss 0.75000  ctr 0.50000  cvr 0.25000  lr[dense] 0.001")
    screen.bar.record(screen.trainer, RECORD)
    screen.bar.step(screen.trainer, replace(REPORT, step=61))
    assert "binary_cross_entropy 0.63307" in screen.shown()[1]  # the mean of the last record stays
    screen.bar.close()


@pytest.mark.parametrize("ends", [True, False], ids=["finished", "interrupted"])
def test_an_evaluation_leaves_nothing_but_its_result(ends: bool) -> None:
    screen = Screen()
    screen.bar.step(screen.trainer, REPORT)
    before = len(screen.shown())
    for done in range(1, 31):
        screen.bar.evaluating(screen.trainer, done, 40)
    (line,) = [line for line in screen.shown() if line.startswith("evaluating")]
    assert "30/40" in line
    if ends:
        screen.bar.evaluation(screen.trainer, {"auc": 0.75})
        assert len(screen.shown()) == before
    screen.bar.close()
    left = screen.console.file.getvalue()  # type: ignore[attr-defined]
    assert "evaluated" not in left
    assert ("evaluation: auc 0.750000" in left) == ends
    assert not any("evaluating" in line for line in screen.shown())


@pytest.mark.parametrize(("every", "said"), [(0, []), (10, [10, 20, 30])])
def test_files_have_lines_of_an_evaluation_only_where_they_are_asked_for(
    every: int, said: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    lines = PlainLines(every)
    trainer: Any = None
    with caplog.at_level(logging.INFO, "recgrad.training"):
        for done in range(1, 36):
            lines.evaluating(trainer, done, 35)
    assert [record.getMessage() for record in caplog.records] == [
        f"evaluated {done}/35 batches" for done in said
    ]


def test_optimizers_are_one_line_and_their_parameters_for_those_who_ask(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))
    text = """adamw_optimizer { lr: 0.003 weight_decay: 0.01 } exclude_bias_and_norm: true
      constant_learning_rate {}
      part_optimizers { regex_pattern: "2[.].*" sgd_optimizer { lr: 0.1 } }"""
    config = text_format.Parse(text, DenseOptimizer())
    with caplog.at_level(logging.DEBUG, "recgrad.optim"):
        build_dense_optimizers(model.named_parameters(), config)
    (line, table) = (record for record in caplog.records if record.name.startswith("recgrad.optim"))
    assert line.levelno == logging.INFO
    assert line.getMessage() == (
        "dense: AdamW, lr 0.003, Constant, 4 parameters of 56 weights; "
        "2[.].*: SGD, lr 0.1, Constant, 2 parameters of 9 weights"
    )
    assert table.levelno == logging.DEBUG
    assert table.getMessage().splitlines() == [
        "dense parameters:",
        "dense: AdamW, lr 0.003, weight decay 0.01, Constant",
        "  0.weight  8×4  first matrix",
        "dense: AdamW, lr 0.003, weight decay 0, Constant",
        "  0.bias    8    bias",
        "  1.weight  8    bias",
        "  1.bias    8    bias",
        "dense.2[.].*: SGD, lr 0.1, weight decay 0, Constant",
        "  2.weight  1×8  last matrix",
        "  2.bias    1    bias",
    ]
