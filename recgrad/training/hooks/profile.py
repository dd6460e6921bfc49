"""A torch.profiler trace of a few steps, which TensorBoard and Perfetto open."""

from __future__ import annotations

import logging
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

from recgrad.training.hook import Hook, StepReport
from recgrad.training.trainer import Trainer

_log = logging.getLogger("recgrad.training")

WAIT_STEPS = 5
WARMUP_STEPS = 2
ACTIVE_STEPS = 8


class ProfileSteps(Hook):
    """Traces steps 8 to 15 of this process into model_dir/profile."""

    def __init__(self, model_dir: Path) -> None:
        self.folder = model_dir / "profile"
        self._profiler: profile | None = None
        self._steps = 0

    def on_start(self, trainer: Trainer) -> None:
        activities = [ProfilerActivity.CPU]
        if trainer.processes.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(
            activities=activities,
            schedule=schedule(wait=WAIT_STEPS, warmup=WARMUP_STEPS, active=ACTIVE_STEPS, repeat=1),
            on_trace_ready=tensorboard_trace_handler(str(self.folder)),
        )
        self._profiler.start()

    def after_step(self, trainer: Trainer, report: StepReport) -> None:
        self._steps += 1
        if self._profiler is not None:
            self._profiler.step()

    def close(self, trainer: Trainer) -> None:
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None
            if self._steps <= WAIT_STEPS + WARMUP_STEPS:
                _log.warning("is_profiling: the run was too short for a trace, which begins at step 8")
