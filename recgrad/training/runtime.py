"""Settings of the process: threads, allocator, subnormal numbers, seeds.

Commands call these at start-up; importing Recgrad changes nothing.
"""

from __future__ import annotations

import ctypes
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from recgrad.embedding.local.memory import HUGE_PAGE_BYTES, advise_huge
from recgrad.kernels.threads import call_on_threads
from recgrad.openmp import choose_threads, threads_of_environment
from recgrad.waiting import considerate_threads

M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
KEEP_BYTES = 2**31 - 1
HUGE_BYTES = 2**30  # of the heap, for which huge pages are asked; less than is kept when it is freed


def set_up_process(num_threads: int | None = None, processes: int = 1) -> int:
    """What every command that computes begins with: memory is kept, and threads are set; their number.

    Args:
        num_threads: as the user asks; None leaves it to `choose_threads`.
        processes: how many processes of this run share the cores of the machine.
    """
    global _threads_are_free
    threads = choose_threads(num_threads, processes)
    _threads_are_free = num_threads is None and threads_of_environment() is None
    if keep_freed_memory():
        ask_for_huge_pages()
    return set_threads(threads)


_threads_are_free = False


def threads_are_free() -> bool:
    """Whether a command set the number of threads, and its user did not say which."""
    return _threads_are_free


def set_threads(threads: int) -> int:
    """Give torch and numba the same number of threads.

    Their parallel regions never overlap, so together they use each core once.
    """
    import numba

    torch.set_num_threads(threads)
    settings: Any = numba.config
    numba.set_num_threads(min(threads, settings.NUMBA_NUM_THREADS))
    return threads


@contextmanager
def computing() -> Iterator[None]:
    """What holds while a run computes; a decorator, too. Set the number of threads before.

    Subnormal numbers count as zero, and threads that wait leave the cores to others who want them.
    """
    with subnormals_flushed(), considerate_threads(torch.get_num_threads()):
        yield


@contextmanager
def subnormals_flushed() -> Iterator[None]:
    """Take numbers below 1.2e-38 (of float32) for zero in here, on all threads of torch; a decorator, too.

    As a loss nears 0 its gradients become that small, and a step many times slower. Threads that
    are started in here inherit the setting. Afterwards it is for each thread as it was. Set the number
    of threads before: torch keeps those that it had in use and may take them again.
    """
    before: dict[int, bool] = {}
    of_caller = flushes_subnormals()

    def switch_on() -> None:
        before[threading.get_native_id()] = flushes_subnormals()
        torch.set_flush_denormal(True)

    def switch_back() -> None:
        torch.set_flush_denormal(before.get(threading.get_native_id(), of_caller))

    try:
        call_on_threads(switch_on)
        yield
    finally:
        call_on_threads(switch_back)


def flushes_subnormals() -> bool:
    """Whether this thread takes subnormal numbers for zero."""
    smallest = sys.float_info.min
    return smallest / 2 == 0


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


@lru_cache(maxsize=1)
def ask_for_huge_pages() -> bool:
    """Have the kernel back the heap's next gigabyte by huge pages, as it is touched; whether it was asked.

    Rows of a batch lie kilobytes apart: with pages of 4 KB nearly every read waits for an address to be
    translated. Nothing is taken before it is used. Where the kernel counts what is reserved as used
    (overcommit 2), it is left alone.
    """
    try:
        with open("/proc/sys/vm/overcommit_memory") as file:
            if file.read().strip() == "2":
                return False
        libc = ctypes.CDLL("libc.so.6")
    except OSError:
        return False
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
    block = libc.malloc(HUGE_BYTES)
    if block is None:  # a limit on addresses
        return False
    first = -(-block // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    last = (block + HUGE_BYTES) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    asked = advise_huge(first, last - first)
    libc.free(block)
    return asked


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
