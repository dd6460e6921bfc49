"""Kernels as C functions, compiled once per user and machine."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numba

from recgrad.kernels import cached_cfunc, is_kept
from recgrad.kernels.parallel import SIGNATURE

_log = logging.getLogger("recgrad.embedding")
_NOTICEABLE_SECONDS = 0.8


@cache
def simple_kernel(function: Any, signature: Any = SIGNATURE) -> Any:
    """An njit function of this package, most of all one that draws tasks, as a C function."""
    return _kernel(signature, function.py_func, function.py_func.__name__)


def rule_kernel(signature: Any, make: Callable[[Any], Callable[..., Any]], rule: Callable[..., Any]) -> Any:
    """A kernel with an optimizer's rule compiled into it.

    Args:
        signature: of the kernel.
        make: gives the function to compile, which calls the rule that it is given.
        rule: an njit function at the top level of an importable file, or a method or local
            function, which is then compiled again in each process.
    """
    known = _RULES.get(id(rule))
    if known is not None and known[0] is rule:
        return known[1]
    function = getattr(rule, "py_func", rule)
    module, name = function.__module__, function.__qualname__
    kept = getattr(sys.modules.get(module), name, None) is rule and module != "__main__"
    kernel = _kernel(signature, make(rule), f"{module.rpartition('.')[2]}_{name}", keep=kept)
    _RULES[id(rule)] = (rule, kernel)
    return kernel


_RULES: dict[int, tuple[Any, Any]] = {}


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
