"""What a run computes on: the machine, the processes and the packages, as its log and report say it."""

from __future__ import annotations

import platform
from collections.abc import Mapping

import torch

from recgrad.training.conditions import COMPUTING, SHARDING, cpu_name, package_versions
from recgrad.training.processes import Processes


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
