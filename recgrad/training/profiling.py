"""A torch.profiler trace of a few steps, which TensorBoard and Perfetto open."""

from __future__ import annotations

import logging
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

_log = logging.getLogger("recgrad.training")

WAIT_STEPS = 5
WARMUP_STEPS = 2
ACTIVE_STEPS = 8


class StepTrace:
    """Traces steps 8 to 15 of this process into a folder.

    Args:
        folder: which gets the trace.
        cuda: whether kernels of a GPU are traced too.
    """

    def __init__(self, folder: Path, *, cuda: bool) -> None:
        self._steps = 0
        self._profiler = profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])],
            schedule=schedule(wait=WAIT_STEPS, warmup=WARMUP_STEPS, active=ACTIVE_STEPS, repeat=1),
            on_trace_ready=tensorboard_trace_handler(str(folder)),
        )
        self._profiler.start()

    def step(self) -> None:
        """A step is done."""
        self._steps += 1
        self._profiler.step()

    def stop(self) -> None:
        """Write what there is; a run that was too short is told."""
        self._profiler.stop()
        if self._steps <= WAIT_STEPS + WARMUP_STEPS:
            _log.warning("is_profiling: the run was too short for a trace, which begins at step 8")
