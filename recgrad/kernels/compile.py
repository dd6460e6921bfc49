"""Kernels as C functions, compiled once per user and machine, when they are first needed."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numba

from recgrad.kernels.cache import cached_cfunc, is_kept
from recgrad.kernels.parallel import SIGNATURE

_log = logging.getLogger("recgrad.kernels")
_NOTICEABLE_SECONDS = 0.8


@cache
def compiled(function: Any, signature: Any = SIGNATURE) -> Any:
    """An njit function of this package as a C function, which `launch` takes or other kernels call."""
    return _kernel(signature, function.py_func, function.py_func.__name__)


@cache
def compiled_with(make: Callable[[Any], Callable[..., Any]], inner: Any, signature: Any = SIGNATURE) -> Any:
    """A kernel with a function of others compiled into it, such as an optimizer's rule.

    Args:
        make: gives the function to compile, which calls the one that it is given.
        inner: an njit function at the top level of an importable file, or a method or local
            function, which is then compiled again in each process.
        signature: of the kernel.
    """
    function = getattr(inner, "py_func", inner)
    module, name = function.__module__, function.__qualname__
    kept = getattr(sys.modules.get(module), name, None) is inner and module != "__main__"
    return _kernel(signature, make(inner), f"{module.rpartition('.')[2]}_{name}", keep=kept)


def _kernel(signature: Any, function: Callable[..., Any], name: str, *, keep: bool = True) -> Any:
    begin = time.perf_counter()
    if keep:
        kernel = cached_cfunc(signature, name=name, nogil=True)(function)
    else:
        kernel = numba.cfunc(signature, nogil=True)(function)
    seconds = time.perf_counter() - begin
    # On a busy machine it may take as long to load one that was kept.
    if seconds > _NOTICEABLE_SECONDS and not kernel.cache_hits:
        later = "; it is kept for the next run" if keep and is_kept() else ""
        _log.info("compiled the %s kernel in %.1f s%s", name, seconds, later)
    return kernel
