"""A torch.profiler trace of a few steps of training."""

from __future__ import annotations

from pathlib import Path

from recgrad.training.hook import Hook, StepReport
from recgrad.training.profiling import StepTrace
from recgrad.training.trainer import Trainer


class ProfileSteps(Hook):
    """Traces steps 8 to 15 of this process into model_dir/profile."""

    def __init__(self, model_dir: Path) -> None:
        self.folder = model_dir / "profile"
        self._trace: StepTrace | None = None

    def on_start(self, trainer: Trainer) -> None:
        self._trace = StepTrace(self.folder, cuda=trainer.processes.device.type == "cuda")

    def after_step(self, trainer: Trainer, report: StepReport) -> None:
        if self._trace is not None:
            self._trace.step()

    def close(self, trainer: Trainer) -> None:
        if self._trace is not None:
            self._trace.stop()
            self._trace = None
