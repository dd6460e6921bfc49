"""The device on which a process computes the dense half of its model."""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist

from recgrad.errors import RecgradError
from recgrad.training.processes.environment import Environment

_log = logging.getLogger("recgrad.training")

CHOICES = ("auto", "cpu", "cuda")
CPU = torch.device("cpu")


def choose_device(asked: str | torch.device = "auto", environment: Environment | None = None) -> torch.device:
    """The device of this process.

    Each process of a machine has a GPU of its own, the one of its local rank. With "auto" they
    compute on GPUs where there are enough for all of them, else on CPUs.

    Args:
        asked: auto, cpu or cuda; a torch.device that can compute is taken as it is.
        environment: this process among the others; a process alone if None.

    Raises:
        RecgradError: cuda is asked for and there are no GPUs, or fewer than processes.
    """
    if isinstance(asked, torch.device):
        return _checked(asked)
    if asked not in CHOICES:
        which = "; choose a GPU by CUDA_VISIBLE_DEVICES" if asked.startswith("cuda") else ""
        raise RecgradError(f"device: must be one of {', '.join(CHOICES)}, got '{asked}'{which}")
    environment = environment or Environment()
    needed = environment.local_world_size
    found = 0 if asked == "cpu" or not torch.cuda.is_available() else torch.cuda.device_count()
    if found >= needed:
        return torch.device("cuda", environment.local_rank)
    if asked == "cuda":
        raise RecgradError(_missing(found, needed))
    if found and environment.local_rank == 0:
        _log.info("%d processes but %d GPUs: all compute on CPUs", needed, found)
    return CPU


def _checked(device: torch.device) -> torch.device:
    if device.type == "meta":
        raise RecgradError("device: tensors of meta have no values to compute with; use cpu or cuda")
    if device.type == "cuda":
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not found:
            raise RecgradError(_missing(0, 1))
        index: int | None = device.index  # torch declares it an int; "cuda" has none
        if index is not None and index >= found:
            raise RecgradError(f"device: '{device}' is not there, torch finds {found} GPUs, from cuda:0 on")
    return device


def backend_of(device: torch.device) -> str:
    """The backends of a process group whose ranks compute on such devices, as torch spells them.

    Tensors of the CPU always go by gloo.
    """
    if device.type == "cpu":
        return "gloo"
    if device.type != "cuda":
        raise RecgradError(
            f"device: several processes compute on cpu or cuda, got '{device}'; start one process"
        )
    if not dist.is_nccl_available():
        raise RecgradError(
            f"device: several processes on GPUs need nccl, which torch {torch.__version__} lacks; "
            "start one process, or use --device cpu"
        )
    return "cpu:gloo,cuda:nccl"


def _missing(found: int, needed: int) -> str:
    if found:
        return (
            f"device: cuda needs a GPU for each of the {needed} processes of this machine, "
            f"torch finds {found}; start {found}, or use --device cpu"
        )
    built = (
        "is built for CPUs" if torch.version.cuda is None and torch.version.hip is None else "finds no GPU"
    )
    return f"device: cuda is asked for, but torch {torch.__version__} {built}; use --device cpu or auto"
