"""Settings of the process: threads, allocator, seeds.

Commands call these at start-up; importing Recgrad changes nothing.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from recgrad.errors import RecgradError

M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
KEEP_BYTES = 2**31 - 1


def set_up_process(num_threads: int | None = None) -> int:
    """What every command that computes begins with: memory is kept, and threads are set; their number."""
    keep_freed_memory()
    return use_all_cores(num_threads)


def use_all_cores(num_threads: int | None = None) -> int:
    """Give torch and numba the same number of threads, all cores of this process by default.

    Their parallel regions never overlap, so together they use each core once.
    """
    import numba

    if num_threads is not None and num_threads < 1:
        raise RecgradError(f"--num_threads: must be at least 1, got {num_threads}")
    threads = num_threads or available_cores()
    torch.set_num_threads(threads)
    settings: Any = numba.config
    numba.set_num_threads(min(threads, settings.NUMBA_NUM_THREADS))
    return threads


def available_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def keep_freed_memory() -> bool:
    """Let glibc keep large freed blocks instead of handing them back to the kernel.

    A training step frees and takes the same blocks each time; without this, blocks over
    32 MB cost thousands of page faults a step. Returns whether it could be done.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:  # musl and others
        return False
    return bool(libc.mallopt(M_MMAP_MAX, 0)) and bool(libc.mallopt(M_TRIM_THRESHOLD, KEEP_BYTES))


def seed_everything(seed: int) -> None:
    """Seed the generators that models, dropout and custom components may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - user code may still draw from the global generator
    torch.manual_seed(seed % 2**64)  # a rank's may lie beyond the largest that a config takes


def rng_state(device: torch.device | None = None) -> dict[str, object]:
    """The state of the generators that `seed_everything` seeds, as plain values.

    That of an accelerator is among them, under the name of its kind, where `device` is one.
    """
    version, words, gauss = random.getstate()
    name, keys, pos, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    state: dict[str, object] = {
        "torch": torch.get_rng_state(),
        "python": [version, list(words), gauss],
        "numpy": [name, np.asarray(keys), pos, has_gauss, cached],
    }
    if device is not None and device.type != "cpu":
        state[device.type] = torch.get_device_module(device).get_rng_state(device)
    return state


@contextmanager
def untouched_generators() -> Iterator[None]:
    """Leave the host's generators as they were, whatever is drawn from them inside."""
    before = rng_state()
    try:
        yield
    finally:
        set_rng_state(before)


def set_rng_state(state: dict[str, object], device: torch.device | None = None) -> None:
    """Restore what `rng_state` gave; a device of another kind than then keeps its generator."""
    torch.set_rng_state(torch.as_tensor(state["torch"]))
    version, words, gauss = state["python"]  # type: ignore[misc]
    random.setstate((version, tuple(words), gauss))  # type: ignore[has-type]
    name, keys, pos, has_gauss, cached = state["numpy"]  # type: ignore[misc]
    np.random.set_state((name, np.asarray(keys), pos, has_gauss, cached))  # type: ignore[has-type]  # noqa: NPY002
    if device is not None and device.type in state:
        torch.get_device_module(device).set_rng_state(torch.as_tensor(state[device.type]), device)
