"""Running a kernel on torch's own threads.

A kernel is a C function of one pointer: to an int64 array whose first two numbers are
counters and whose rest are its arguments. Every thread calls the same function and draws
task numbers from the counters, so a kernel does not know how many threads it has and its
result cannot depend on that.

numba's own thread pools would spin beside torch's; libgomp, which torch has loaded, takes
the kernel into the same pool. Where there is no libgomp, Python threads do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import types

Argument = int | npt.NDArray[Any]

SIGNATURE = types.void(types.CPointer(types.int64))
STAGE_SIGNATURE = types.void(*[types.int64] * 7)
TASK, THREAD, FIRST = 0, 1, 2  # the two counters, and where a kernel's arguments begin


def thread_count() -> int:
    """The number of threads that kernels run on: torch.set_num_threads sets it."""
    return torch.get_num_threads()


def launch(kernel: Any, *arguments: Argument, tasks: int) -> None:
    """Run a kernel with these arguments; returns when all of its tasks are done.

    Args:
        kernel: a compiled `numba.cfunc` of SIGNATURE.
        arguments: ints, and arrays, of which the kernel receives the address.
        tasks: how many tasks there are; no more threads than that are woken.
    """
    values = [a if isinstance(a, int) else a.__array_interface__["data"][0] for a in arguments]
    packed = np.array([0, 0, *values], np.int64)
    address = packed.__array_interface__["data"][0]
    threads = min(thread_count(), tasks)
    if threads <= 1:
        _caller(kernel.address)(address)
    elif (openmp := _openmp()) is not None:
        openmp(kernel.address, address, threads, 0)
    else:
        list(_pool(threads).map(_caller(kernel.address), [address] * threads))


@cache
def _caller(address: int) -> Callable[[int], None]:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)


@lru_cache(maxsize=1)
def _openmp() -> Any:
    """GOMP_parallel(function, argument, threads, flags) of the OpenMP library that torch uses, or None."""
    try:
        function = ctypes.CDLL("libgomp.so.1").GOMP_parallel
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function


@cache  # a kernel of few tasks takes fewer threads than the next: each number keeps its pool
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="recgrad-kernel")
