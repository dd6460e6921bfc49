"""What a log tells of a run beside its numbers: the machine, the size of data and model, what it takes."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from recgrad.models.base import Model
from recgrad.openmp import usable_cores
from recgrad.training.conditions import COMPUTING, SHARDING, cpu_name, package_versions
from recgrad.training.processes import Processes
from recgrad.training.trainer import Trainer

_STATM = Path("/proc/self/statm")


def describe_machine(processes: Processes) -> Mapping[str, str]:
    """By name, in the order in which they are shown; a package that is not installed is left out."""
    gpu = processes.device.type == "cuda"
    return {
        "machine": f"{platform.system()} {platform.machine()}, {cpu_name()}",
        "processes": str(processes.world_size),
        "threads of each": str(torch.get_num_threads()),
        "device": torch.cuda.get_device_name(processes.device) if gpu else str(processes.device),
        **package_versions((*COMPUTING, "protobuf", *SHARDING)),
    }


def describe_run(trainer: Trainer) -> Mapping[str, int]:
    """Counts by name: rows of an epoch, where one process reads them all, and the size of the model."""
    alone = trainer.processes.world_size == 1
    return {**({"train_rows": trainer.loader.num_rows} if alone else {}), **model_size(trainer.task.model)}


def model_size(model: Model) -> dict[str, int]:
    """Dense weights; tables, their rows and their values, whether rows were touched or not."""
    specs = [] if model.engine is None else [table.spec for table in model.engine.tables.values()]
    return {
        "dense_weights": sum(parameter.numel() for _, parameter in model.dense_named_parameters()),
        "tables": len(specs),
        "table_rows": sum(spec.capacity for spec in specs),
        "table_values": sum(spec.capacity * spec.dim for spec in specs),
    }


@dataclass(frozen=True)
class Usage:
    """What this process took since the last look.

    Attributes:
        resident_bytes: memory that it has in the machine now; None where that is not known.
        cpu_share: processor time of all its threads over that of the cores it may use, 1 when all
            of them were busy with it all the time.
    """

    resident_bytes: int | None
    cpu_share: float


class UsageMeter:
    """Takes the usage of this process from one look to the next.

    Args:
        processes: how many processes of the run share the cores.
    """

    def __init__(self, processes: int = 1) -> None:
        self.cores = max(usable_cores() / processes, 1.0)
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def look(self) -> Usage:
        """The usage since the last look, or since the meter was made."""
        wall, cpu = time.perf_counter(), time.process_time()
        share = (cpu - self._cpu) / (max(wall - self._wall, 1e-9) * self.cores)
        self._wall, self._cpu = wall, cpu
        return Usage(resident_bytes(), max(share, 0.0))


def resident_bytes() -> int | None:
    """The memory that this process has in the machine; the most it had, where the present is not known."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def describe_bytes(size: float) -> str:
    """`812 MB`, `1.25 GB`."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
