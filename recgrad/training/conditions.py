"""What the bits of a run depend on beside its config and data: threads, processor, package versions.

torch adds up a matrix product in another order with another number of threads, or with
another set of vector instructions; other versions may compute otherwise. A checkpoint says
under which conditions it was computed, and a resume under others says what has changed.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

import torch

from recgrad.version import __version__

Conditions: TypeAlias = Mapping[str, str]

COMPUTING = ("torch", "numpy", "numba", "llvmlite", "pyarrow", "torchmetrics")
SHARDING = ("torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu")
"""What the tables of several processes are computed with."""
_SETTINGS = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_CPU_INFO = Path("/proc/cpuinfo")


def package_versions(packages: Iterable[str] = COMPUTING) -> dict[str, str]:
    """Of Recgrad, Python and those of the packages that are installed."""
    own = {"recgrad": __version__, "python": platform.python_version()}
    return own | {name: found for name in packages if (found := _installed_version(name))}


def conditions_here(*, sharded: bool) -> dict[str, str]:
    """The conditions of this process, by name, as a checkpoint records them for each rank."""
    found = {
        "threads": str(torch.get_num_threads()),
        "processor": cpu_name(),
        "instructions of torch": torch.backends.cpu.get_cpu_capability(),
        "kernels for": _kernel_target(),
    }
    found |= {name: os.environ[name] for name in _SETTINGS if name in os.environ}
    return found | (sharding_versions() if sharded else {})


def sharding_versions() -> dict[str, str]:
    """Of TorchRec and the builds of FBGEMM that are installed."""
    return {name: found for name in SHARDING if (found := _installed_version(name))}


def describe_changes(
    before: Sequence[Conditions],
    now: Sequence[Conditions],
    versions_before: Mapping[str, str],
    versions_now: Mapping[str, str],
) -> str:
    """What differs between two sets of conditions, as in "threads 1 → 2, torch 2.13.0 → 2.15.0", or "".

    Args:
        before: of each rank then; none if the checkpoint does not say.
        now: of each rank now.
        versions_before: of packages then.
        versions_now: of packages now; those that only one of the two has are not compared.
    """
    changes = []
    if before and len(before) != len(now):
        changes.append(f"processes {len(before)} → {len(now)}")
    names = dict.fromkeys(name for rank in (*before, *now) for name in rank) if before else {}
    for name in names:
        # With one process on one of the two sides there is no sharding to compare.
        if name in SHARDING and not all(name in rank for rank in (*before, *now)):
            continue
        changes += _changes_of(name, [r.get(name, "") for r in before], [r.get(name, "") for r in now])
    for name in versions_before:
        if name in versions_now and versions_before[name] != versions_now[name]:
            changes.append(f"{name} {versions_before[name]} → {versions_now[name]}")
    return ", ".join(changes)


def _changes_of(name: str, before: Sequence[str], now: Sequence[str]) -> list[str]:
    alike = len(set(before)) == len(set(now)) == 1
    if len(before) == len(now) and not alike:
        pairs = enumerate(zip(before, now, strict=True))
        return [f"{name} of rank {rank} {a or 'unset'} → {b or 'unset'}" for rank, (a, b) in pairs if a != b]
    then, here = (", ".join(sorted({value or "unset" for value in values})) for values in (before, now))
    return [f"{name} {then} → {here}"] if then != here else []


@cache
def cpu_name() -> str:
    """The processor as its maker calls it."""
    lines = _CPU_INFO.read_text().splitlines() if _CPU_INFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


@cache
def _kernel_target() -> str:
    """The processor that numba compiles for, with a checksum of the instructions that it may use."""
    import numba
    from llvmlite import binding

    settings = numba.config
    name = getattr(settings, "CPU_NAME", None) or binding.get_host_cpu_name()
    features = getattr(settings, "CPU_FEATURES", None) or binding.get_host_cpu_features().flatten()
    return f"{name} ({hashlib.sha256(features.encode()).hexdigest()[:8]})"


@cache
def _installed_version(package: str) -> str:
    if package == "torch":  # the metadata of some builds leave out which build it is
        return str(torch.__version__)
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
