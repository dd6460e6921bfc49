"""TensorBoard: scalars of the run, and histograms of weights and gradients when asked for."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from recgrad.training.hook import StepReport
from recgrad.training.hooks.log import LogRecord, writing_to
from recgrad.training.trainer import Trainer

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

DEFAULT_SUMMARIES = ("loss", "learning_rate")
TRAIN, EVALUATION = "train", "eval_val"


class TensorBoard:
    """Writes event files under model_dir/train; evaluations under model_dir/eval_val."""

    def __init__(self, model_dir: Path, summaries: Collection[str] = ()) -> None:
        self.summaries = frozenset(summaries or DEFAULT_SUMMARIES)
        self.model_dir = model_dir
        self._purge: dict[str, int | None] = {}
        self._writers: dict[str, SummaryWriter] = {}

    def start(self, trainer: Trainer) -> None:
        # What an interrupted run wrote after the checkpoint is purged by the reader.
        state = trainer.state
        trained = state.step + 1 if state.step else None
        self._purge = {TRAIN: trained, EVALUATION: state.step if state.evaluation_due else trained}

    def step(self, trainer: Trainer, report: StepReport) -> None:
        """Steps are not written one by one."""

    def record(self, trainer: Trainer, record: LogRecord) -> None:
        writer = self._writer(TRAIN)
        if "loss" in self.summaries:
            self._scalars("loss", record.losses, record.step)
        if "learning_rate" in self.summaries:
            self._scalars("lr", record.rates, record.step)
        self._scalars("metric", record.metrics, record.step)
        writer.add_scalar("samples_per_sec", record.samples_per_sec, record.step)
        writer.add_scalar("data_wait_share", record.data_wait_share, record.step)
        if record.resident_bytes is not None:
            writer.add_scalar("memory_gb/resident", record.resident_bytes / 1e9, record.step)
        writer.add_scalar("memory_gb/tables", record.table_bytes / 1e9, record.step)
        for table, turnover in record.turnover.items():
            self._scalars(f"ids/{table}", asdict(turnover), record.step)
        if record.event_time is not None:
            writer.add_scalar("stream/event_time", record.event_time, record.step)
            writer.add_scalar("stream/behind_secs", time.time() - record.event_time, record.step)
        if record.lag is not None:
            writer.add_scalar("stream/lag", record.lag, record.step)
        if record.cpu_share is not None:
            writer.add_scalar("cpu_share", record.cpu_share, record.step)
        if "global_gradient_norm" in self.summaries and record.grad_norm is not None:
            writer.add_scalar("global_gradient_norm", record.grad_norm, record.step)
        if self.summaries & {"parameter", "gradient", "gradient_norm"}:
            self._parameters(trainer, record.step)

    def evaluating(self, trainer: Trainer, done: int, total: int | None) -> None:
        """Only what came of it is kept."""

    def evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        writer = self._writer(EVALUATION)
        for name, value in metrics.items():
            writer.add_scalar(f"metric/{name}", value, trainer.state.step)

    def end(self, trainer: Trainer) -> None:
        """Have both files, whatever was written: they tell the reader what to purge."""
        self._writer(TRAIN)

    def close(self) -> None:
        for name, writer in self._writers.items():
            with writing_to(self.model_dir / name):
                writer.close()

    def _writer(self, name: str) -> SummaryWriter:
        """One of the two writers, made when the first is wanted: the first step does not wait for it."""
        if not self._writers:
            from torch.utils.tensorboard import SummaryWriter

            for folder, purge_step in self._purge.items():
                with writing_to(self.model_dir / folder):
                    self._writers[folder] = SummaryWriter(str(self.model_dir / folder), purge_step=purge_step)
        return self._writers[name]

    def _scalars(self, family: str, values: Mapping[str, float], step: int) -> None:
        writer = self._writer(TRAIN)
        for name, value in values.items():
            writer.add_scalar(f"{family}/{name}", value, step)

    def _parameters(self, trainer: Trainer, step: int) -> None:
        writer = self._writer(TRAIN)
        for name, parameter in trainer.task.model.dense_named_parameters():
            if "parameter" in self.summaries:
                writer.add_histogram(f"parameter/{name}", parameter.detach(), step)
            if parameter.grad is None:
                continue
            if "gradient" in self.summaries:
                writer.add_histogram(f"gradient/{name}", parameter.grad, step)
            if "gradient_norm" in self.summaries:
                writer.add_scalar(f"gradient_norm/{name}", torch.linalg.vector_norm(parameter.grad), step)
