"""How kernels are called, and how they share out their tasks.

A kernel is a C function of one pointer: to an int64 array whose first two numbers are
counters and whose rest are its arguments. Every thread calls the same function and draws
task numbers from the counters, so a kernel does not know how many threads it has and its
result cannot depend on that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import types

from recgrad.kernels.threads import run_on_threads

Argument = int | npt.NDArray[Any]

SIGNATURE = types.void(types.CPointer(types.int64))
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
    run_on_threads(kernel, address, tasks)
