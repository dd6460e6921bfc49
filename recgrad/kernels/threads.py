"""Running a compiled kernel on torch's own threads.

numba's own thread pools would spin beside torch's; libgomp, which torch has loaded, takes the
kernel into the same pool. Where there is no libgomp, Python threads do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch

from recgrad.kernels.flushing import flushing_caller


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
    threads = min(torch.get_num_threads(), tasks)
    if threads <= 1:
        _caller(function)(address)
    elif (openmp := _openmp()) is not None:
        openmp(function, address, threads, 0)
    else:
        list(_pool(threads).map(_caller(function), [address] * threads))


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

    threads, openmp = torch.get_num_threads(), _openmp()
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
