"""Kernels as C functions, compiled once per user and machine, when they are first needed or ahead of that."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numba

from recgrad.kernels.cache import cached_cfunc, is_compiled, is_kept
from recgrad.kernels.parallel import SIGNATURE

_log = logging.getLogger("recgrad.kernels")
_NOTICEABLE_SECONDS = 0.8
_LOOK_SECS, _LONGEST_SECS = 0.05, 60.0
_MOST_FILES = 1 << 16


class Wanted(NamedTuple):
    """A kernel: `compiled(function, signature)`, or `compiled_with(function, inner, signature)`."""

    function: Any
    inner: Any = None
    signature: Any = SIGNATURE


_ahead: dict[Wanted, Callable[[], bool]] = {}
"""What another process compiles, and whether it is still at it."""
_here: set[Wanted] = set()
"""What this process has."""


@cache
def compiled(function: Any, signature: Any = SIGNATURE) -> Any:
    """An njit function of this package as a C function, which `launch` takes or other kernels call."""
    return _kernel(Wanted(function, None, signature))


@cache
def compiled_with(make: Callable[[Any], Callable[..., Any]], inner: Any, signature: Any = SIGNATURE) -> Any:
    """A kernel with a function of others compiled into it, such as an optimizer's rule.

    Args:
        make: gives the function to compile, which calls the one that it is given.
        inner: an njit function at the top level of an importable file, or a method or local
            function, which is then compiled again in each process.
        signature: of the kernel.
    """
    return _kernel(Wanted(make, inner, signature))


def compile_ahead(wanted: Sequence[Wanted], processes: int) -> list[int]:
    """Have kernels that are not kept yet compiled by other processes, while this one goes on.

    Whoever asks for one of them waits for it, or compiles it where that came to nothing.

    Returns:
        the numbers of the processes.
    """
    if sys.platform != "linux" or not is_kept():
        return []
    missing = _missing(wanted)
    children = []
    for i in range(min(processes, len(missing))):
        group = missing[i::processes]
        child, ends = _compile_elsewhere(group)
        children.append(child)
        _ahead.update(dict.fromkeys(group, ends.is_alive))
    return children


def expect(wanted: Sequence[Wanted], at_work: Callable[[], bool]) -> None:
    """Have kernels that are not kept yet waited for: others compile them, as long as they are `at_work`."""
    if is_kept():
        _ahead.update(dict.fromkeys(_missing(wanted), at_work))


def _missing(wanted: Sequence[Wanted]) -> list[Wanted]:
    """Those that are neither kept, nor here, nor expected."""
    new = (one for one in dict.fromkeys(wanted) if one not in _ahead and one not in _here)
    return [one for one in new if _is_missing(one)]


def _compile_elsewhere(group: Sequence[Wanted]) -> tuple[int, threading.Thread]:
    """A process that compiles kernels one after another, and a thread that ends with it."""
    with warnings.catch_warnings():
        # Python warns of threads, whose locks nobody would give back in a copy of this process. The copy does
        # nothing but compile, and if it does not come to an end, nobody waits for it long.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            _let_go()
            for one in group:
                signal.alarm(int(_LONGEST_SECS))  # the end, if it waits for a lock that nobody gives back
                _build(one)
        finally:
            os._exit(0)
    ends = threading.Thread(target=os.waitpid, args=(child, 0), daemon=True)
    ends.start()
    return child, ends


def _let_go() -> None:
    """Keep nothing open that is this process's own: its locks and pipes must end with it, not with a copy."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    logging.disable()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.closerange(3, _MOST_FILES)


def _kernel(wanted: Wanted) -> Any:
    begin = time.perf_counter()
    at_work = _ahead.pop(wanted, None)
    if at_work is not None:
        while at_work() and _is_missing(wanted):
            if time.perf_counter() - begin > _LONGEST_SECS:
                break
            time.sleep(_LOOK_SECS)
    kernel = _build(wanted)
    _here.add(wanted)
    seconds = time.perf_counter() - begin
    # On a busy machine it may take as long to load one that was kept.
    if seconds > _NOTICEABLE_SECONDS and (at_work is not None or not kernel.cache_hits):
        _, name, keep = _source(wanted)
        later = "; it is kept for the next run" if keep and is_kept() and not _is_missing(wanted) else ""
        _log.info("compiled the %s kernel in %.1f s%s", name, seconds, later)
    return kernel


def _build(wanted: Wanted) -> Any:
    function, name, keep = _source(wanted)
    if keep:
        return cached_cfunc(wanted.signature, name=name, nogil=True)(function)
    return numba.cfunc(wanted.signature, nogil=True)(function)


def _is_missing(wanted: Wanted) -> bool:
    """Whether it can be kept and is not."""
    function, name, keep = _source(wanted)
    return keep and not is_compiled(function, wanted.signature, name, nogil=True)


def _source(wanted: Wanted) -> tuple[Callable[..., Any], str, bool]:
    """The Python function of a kernel, its name, and whether its code can be kept."""
    if wanted.inner is None:
        function = wanted.function.py_func
        return function, function.__name__, True
    inner = getattr(wanted.inner, "py_func", wanted.inner)
    module, name = inner.__module__, inner.__qualname__
    kept = getattr(sys.modules.get(module), name, None) is wanted.inner and module != "__main__"
    return wanted.function(wanted.inner), f"{module.rpartition('.')[2]}_{name}", kept
