"""How kernels are called, and how they share out their tasks.

A kernel is a C function of one address: of a block of int64 whose first two numbers are
counters and whose rest are its arguments. Every thread calls the same function and draws
task numbers from the counters, so a kernel does not know how many threads it has and its
result cannot depend on that.

    block   0       1         2 …
          ┌───────┬─────────┬────────────────────────────────────────┐
          │ tasks │ threads │ sizes, and addresses of arrays         │
          │ drawn │ arrived │ (a kernel's file names each by number) │
          └───────┴─────────┴────────────────────────────────────────┘

After a kernel that has gone through megabytes, whatever Python does next comes from memory anew, and takes
much longer. So where several kernels follow each other, all is made ready first: `Launches` has them run in
one call.

A thread's number is for scratch memory of its own, and for nothing that shows in a result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types

from recgrad.kernels.simd import fetch_add
from recgrad.kernels.threads import run_all_on_threads, run_on_threads, thread_count

Array = npt.NDArray[Any]
Launch = Callable[..., None]
"""`launch`, or `add` of `Launches`."""

__all__ = [
    "FIRST",
    "SIGNATURE",
    "Launch",
    "Launches",
    "launch",
    "launch_block",
    "next_task",
    "thread_count",
    "thread_number",
]

SIGNATURE = types.void(types.int64)
_TASK, _THREAD = 0, 8  # bytes from the start of a block to the two counters
FIRST = 2  # where a kernel's arguments begin


@njit(nogil=True)
def next_task(a: int) -> int:
    """The number of a task that no thread has had; the kernel stops when it is past the last."""
    return fetch_add(a + _TASK, 1)


@njit(nogil=True)
def thread_number(a: int) -> int:
    """The number of the thread that calls, from 0 on: to be asked for once per call of the kernel."""
    return fetch_add(a + _THREAD, 1)


def launch(kernel: Any, *arguments: Any, tasks: int) -> None:
    """Run a kernel with these arguments; returns when all of its tasks are done.

    Args:
        kernel: a compiled `numba.cfunc` of SIGNATURE.
        arguments: ints; and arrays or tensors, of which the kernel receives the address.
        tasks: how many tasks there are; no more threads than that are woken.
    """
    block = _block(arguments)
    run_on_threads(kernel, block.__array_interface__["data"][0], tasks)


def launch_block(kernel: Any, block: Array, tasks: int) -> None:
    """As `launch`, with arguments that were laid out before: int64, from FIRST on."""
    block[:FIRST] = 0
    run_on_threads(kernel, block.__array_interface__["data"][0], tasks)


class Launches:
    """Kernels that run one after another when they are told to; what they were given is kept until then."""

    def __init__(self) -> None:
        self._calls: list[tuple[Any, Array, int]] = []
        self._kept: list[Any] = []

    def add(self, kernel: Any, *arguments: Any, tasks: int) -> None:
        """As `launch`, but later."""
        self._calls.append((kernel, _block(arguments), tasks))
        self.keep(arguments)

    def keep(self, *owners: Any) -> None:
        """Keep what owns memory that kernels know by its address alone."""
        self._kept.append(owners)

    def run(self) -> None:
        """Run all that was added, in this order; then there is nothing left to run."""
        calls = [
            (kernel, block.__array_interface__["data"][0], tasks) for kernel, block, tasks in self._calls
        ]
        run_all_on_threads(calls)
        self._calls, self._kept = [], []


def _block(arguments: tuple[Any, ...]) -> Array:
    return np.array([0, 0, *map(_value, arguments)], np.int64)


def _value(argument: Any) -> int:
    if isinstance(argument, int):
        return argument
    if isinstance(argument, np.ndarray):
        address: int = argument.__array_interface__["data"][0]
    else:
        address = argument.data_ptr()
    return address
