"""What a run computes on: the machine, the processes and the packages, as its log and report say it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from recgrad.training.processes import Processes
from recgrad.version import __version__

PACKAGES = (
    "torch",
    "numpy",
    "numba",
    "pyarrow",
    "torchmetrics",
    "protobuf",
    "torchrec",
    "fbgemm-gpu",
    "fbgemm-gpu-cpu",
)
_CPU_INFO = Path("/proc/cpuinfo")


def describe_machine(processes: Processes) -> Mapping[str, str]:
    """By name, in the order in which they are shown; a package that is not installed is left out."""
    gpu = processes.device.type == "cuda"
    return {
        "machine": f"{platform.system()} {platform.machine()}, {_cpu_name()}",
        "processes": str(processes.world_size),
        "threads of each": str(torch.get_num_threads()),
        "device": torch.cuda.get_device_name(processes.device) if gpu else str(processes.device),
        "recgrad": __version__,
        "python": platform.python_version(),
        **{package: found for package in PACKAGES if (found := _version(package))},
    }


def _cpu_name() -> str:
    lines = _CPU_INFO.read_text().splitlines() if _CPU_INFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
