"""Running a compiled kernel on torch's own threads, or on Python's where torch is not loaded.

numba's own thread pools would spin beside torch's; libgomp, which torch has loaded, takes the
kernel into the same pool. Where there is no libgomp, Python threads do. A served model has no torch:
nothing here loads it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any

import numpy as np

from recgrad.kernels.flushing import flushing_caller, flushing_sequence

_without_torch: list[int] = []


def thread_count() -> int:
    """The number of threads that kernels run on.

    torch.set_num_threads sets it. Without torch `set_thread_count` does, else it is OMP_NUM_THREADS or
    the cores of this process.
    """
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):  # not while it is being imported
        return int(torch.get_num_threads())
    if not _without_torch:
        asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        _without_torch.append(int(asked) if asked.isdecimal() and int(asked) else cores)
    return _without_torch[0]


def set_thread_count(threads: int) -> None:
    """Say how many threads kernels run on where torch is not loaded; where it is, tell torch."""
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    _without_torch[:] = [threads]
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def run_on_threads(kernel: Any, address: int, tasks: int) -> None:
    """Call a kernel on each thread with the address of its argument block; returns when all are done.

    Subnormal numbers count as zero in it, on every thread.

    Args:
        kernel: a compiled `numba.cfunc` of one pointer; its threads draw tasks from the block.
        address: where the argument block begins.
        tasks: how many tasks there are; no more threads than that are woken.
    """
    function = kernel.address
    if caller := flushing_caller():
        block = np.array([function, address], np.int64)
        function, address = caller, block.__array_interface__["data"][0]
    threads = min(thread_count(), tasks)
    if threads <= 1:
        _caller(function)(address)
    elif (openmp := _openmp()) is not None:
        openmp(function, address, threads, 0)
    else:
        list(_pool(threads).map(_caller(function), [address] * threads))


def run_all_on_threads(calls: Sequence[tuple[Any, int, int]]) -> None:
    """As `run_on_threads` for each (kernel, address, tasks), one after another, without Python in between."""
    sequence, openmp, most = flushing_sequence(), _openmp(), thread_count()
    if not sequence or openmp is None:
        for call in calls:
            run_on_threads(*call)
        return
    lines = [(kernel.address, address, min(most, tasks)) for kernel, address, tasks in calls]
    block = np.array([len(calls), _openmp_address(), *(value for line in lines for value in line)], np.int64)
    _caller(sequence)(block.__array_interface__["data"][0])


def call_on_threads(function: Callable[[], None]) -> None:
    """Call a Python function once on each thread that torch's operators run on when this one calls them.

    Where these are not known it is called on this thread alone.
    """
    errors: list[BaseException] = []

    def call(_: object) -> None:
        try:
            function()
        except BaseException as error:  # ctypes would print and forget it, Ctrl-C too
            errors.append(error)

    threads, openmp = thread_count(), _openmp()
    if threads <= 1 or openmp is None:
        call(None)
    else:
        entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(call)
        openmp(ctypes.cast(entry, ctypes.c_void_p), None, threads, 0)
    if errors:
        raise errors[0]


@cache
def _caller(address: int) -> Callable[[int], None]:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)


def _openmp() -> Any:
    """GOMP_parallel(function, argument, threads, flags) of the OpenMP library that torch uses, or None."""
    return _loaded_openmp() if "torch" in sys.modules else None


@lru_cache(maxsize=1)
def _loaded_openmp() -> Any:
    try:
        function = ctypes.CDLL("libgomp.so.1").GOMP_parallel
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function


@cache
def _openmp_address() -> int:
    return ctypes.cast(_loaded_openmp(), ctypes.c_void_p).value or 0


@cache  # a kernel of few tasks takes fewer threads than the next: each number keeps its pool
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="recgrad-kernel")
