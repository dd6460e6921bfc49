"""Compiled code that is kept from run to run.

numba's own cache notices changes of the file that a function is in, not of the functions of other
files that are compiled into it; and two processes that compile at once may mix up its entries. Here
every entry is one file whose name is a hash of all that the code is made of (`kernel_key`), of
the types that it is compiled for and of the processor: what is found under a name is
right, whoever wrote it, and nothing is ever changed in place.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numba

from recgrad.kernels.clean import DAY_SECS, remove_old
from recgrad.kernels.key import kernel_key

_log = logging.getLogger("recgrad.kernels")
_SUFFIX = ".nbc"


def cached_njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit(**options)` whose compiled code is kept for the next run."""

    def decorate(function: Callable[..., Any]) -> Any:
        compiled: Any = numba.njit(**options)(function)
        internals = _internals()
        if internals is not None and hasattr(compiled, "_cache"):  # not so with NUMBA_DISABLE_JIT
            compiled._cache = internals.Cache(function, options)
        return compiled

    return decorate


def cached_cfunc(signature: Any, name: str = "", **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.cfunc(signature, **options)` whose compiled code is kept for the next run.

    `name` tells functions apart that have the same one, such as those made by a function.
    """

    def decorate(function: Any) -> Any:
        if _internals() is None:
            return numba.cfunc(signature, **options)(function)
        made = _to_compile(function, signature, name, options)
        made.compile()
        return made

    return decorate


def is_compiled(function: Any, signature: Any, name: str = "", **options: Any) -> bool:
    """Whether `cached_cfunc` of the same arguments would find its code."""
    if _internals() is None:
        return False
    made = _to_compile(function, signature, name, options)
    path = made._cache._path(made._sig, made._targetdescr.target_context.codegen())
    return path is not None and path.exists()


def _to_compile(function: Any, signature: Any, name: str, options: dict[str, Any]) -> Any:
    """numba's C function of a function, not compiled yet, with a cache of ours."""
    internals = _internals()
    assert internals is not None
    made_of = (function.__code__, function.__globals__, function.__name__)
    own = FunctionType(*made_of, function.__defaults__, function.__closure__)
    own.__module__, own.__qualname__ = function.__module__, name or function.__qualname__
    cache = internals.Cache(own, options)
    # Code of different sources must not meet under one name when one process loads both.
    own.__qualname__ = f"{own.__qualname__}_{cache.key[:16]}"
    made: Any = internals.CFunc(own, internals.normalize_signature(signature), locals={}, options=options)
    made._cache = cache
    return made


def is_kept() -> bool:
    """Whether code is kept at all: numba has what that needs, and a folder can be written to."""
    return _internals() is not None and _folder() is not None


def kept_files() -> frozenset[str] | None:
    """The names of all that is kept; None where nothing can be."""
    folder = _folder() if is_kept() else None
    return None if folder is None else frozenset(path.name for path in folder.glob(f"*{_SUFFIX}"))


class _Internals:
    """What of numba's inner parts the cache is made with; `Cache` is numba's interface filled in."""

    def __init__(self) -> None:
        from numba.core.caching import _Cache
        from numba.core.ccallback import CFunc
        from numba.core.compiler import CompileResult
        from numba.core.serialize import dumps
        from numba.core.sigutils import normalize_signature

        self.CFunc = CFunc
        self.normalize_signature = normalize_signature
        self.dumps = dumps
        self.reduce, self.rebuild = CompileResult._reduce, CompileResult._rebuild
        self.Cache = type("KernelCache", (KernelCache, _Cache), {})
        self.Cache(_internals, {})  # fails where the interface wants more than is here


@cache
def _internals() -> _Internals | None:
    try:
        return _Internals()
    except (ImportError, AttributeError, TypeError) as error:
        _log.warning("numba %s: compiled kernels cannot be kept (%s)", numba.__version__, error)
        return None


class KernelCache:
    """The compiled code of one function, by the types of its arguments: numba's interface of a cache."""

    def __init__(self, function: Any, options: Mapping[str, Any]) -> None:
        self._function = function
        self._options = dict(options)
        self._name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"

    @cached_property
    def key(self) -> str:
        """Of all that the code is made of."""
        # When it is first asked for: the names that a function uses may be defined after it.
        return kernel_key(self._function, self._options)

    @property
    def cache_path(self) -> str | None:
        """Where the code is kept."""
        folder = _folder()
        return None if folder is None else str(folder)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The code for these types, or None."""
        internals, path = _internals(), self._path(sig, target_context.codegen())
        if internals is None or path is None:
            return None
        target_context.refresh()
        try:
            content = pickle.loads(path.read_bytes())
            _mark_used(path)
            return internals.rebuild(target_context, *content)
        except FileNotFoundError:
            return None
        except Exception as error:  # whatever is wrong with it, it can be compiled
            _log.debug("%s: cannot be used (%r)", path, error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep code for these types, if that can be done."""
        internals, path = _internals(), self._path(sig, data.codegen)
        if internals is None or path is None or not _can_be_kept(data):
            return
        try:
            content = internals.dumps(internals.reduce(data))
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                os.replace(temporary, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:  # a full disk is no reason to stop a run
            _log.debug("%s: cannot be kept (%r)", path, error)
            return
        _clean_once(path.parent)

    def enable(self) -> None:
        """It always is."""

    def disable(self) -> None:
        """It cannot be: numba never asks for it."""

    def flush(self) -> None:
        """Nothing is stale: other sources have other names."""

    def _path(self, sig: Any, codegen: Any) -> Path | None:
        folder = _folder()
        if folder is None:
            return None
        what = f"{self.key} {self._name} {sig!r} {codegen.magic_tuple()!r}"
        safe = "".join(c if c.isalnum() or c == "_" else "." for c in self._name)[-80:]
        return folder / f"{safe}-{hashlib.sha256(what.encode()).hexdigest()[:32]}{_SUFFIX}"


def _can_be_kept(result: Any) -> bool:
    """Not code that has addresses of this process in it, or falls back to Python objects."""
    return not result.lifted and not result.library.has_dynamic_globals


def _mark_used(path: Path) -> None:
    """Let the clean-up see that a file is in use; once a day is enough."""
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > DAY_SECS:
            os.utime(path)


@cache
def _clean_once(folder: Path) -> None:
    remove_old(folder, _SUFFIX)


def _folder() -> Path | None:
    return _writable(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"))


@lru_cache(maxsize=8)
def _writable(root: str) -> Path | None:
    """The folder for compiled code in a user's cache directory; None if it cannot be written to."""
    path = Path(root) / "recgrad" / "kernels"
    try:
        path.mkdir(parents=True, exist_ok=True)
        if os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    _log.warning(
        "%s: cannot be written to, so kernels are compiled again in every run; set XDG_CACHE_HOME", path
    )
    return None
