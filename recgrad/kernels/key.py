"""A key of everything that a kernel is made of.

Compiled code has in it all functions that a kernel calls, the constants that it reads and
the options of each. The key is derived from the function itself: from what its names mean, and
so on from there. A list of files would be forgotten one day, and then old code would run.
"""

from __future__ import annotations

import hashlib
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite
import numba
import numpy as np

from recgrad.version import __version__

# What these compile to depends on their versions alone, which are part of the key.
_VERSIONED = sys.stdlib_module_names | {"numba", "llvmlite", "numpy", "torch"}
_ADDRESS = re.compile("0x[0-9a-f]+")
_CODE_SETTINGS = ("OPT", "SLP_VECTORIZE", "LOOP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT")


def kernel_key(function: Any, options: Mapping[str, Any]) -> str:
    """A hash of a function, its options, all that it reaches by name, and the versions that compile it."""
    found = _Reached()
    found.add_function(function)
    digest = hashlib.sha256(f"{_compiler()} {_text(options)}".encode())
    for part in sorted(found.parts):
        digest.update(part.encode(errors="surrogatepass") + b"\0")
    return digest.hexdigest()


@cache
def _compiler() -> str:
    settings = [getattr(numba.config, name, None) for name in _CODE_SETTINGS]
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{__version__} {numba.__version__} {llvmlite.__version__} {np.__version__} {python} {settings}"


class _Reached:
    """What was found so far: `parts` are a text for each file, constant and set of options."""

    def __init__(self) -> None:
        self.parts: set[str] = set()
        self._seen: set[int] = set()
        self._kept: list[Any] = []  # so that no other object gets the id of one that was seen
        self._members: set[tuple[str, str]] = set()

    def _is_new(self, value: Any) -> bool:
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        self._kept.append(value)
        return True

    def add_function(self, function: Any) -> None:
        """A Python function: its file, and what its names mean."""
        if not self._is_new(function) or _is_versioned(function.__module__):
            return
        code = function.__code__
        self.parts.add(_file_hash(code.co_filename) or _code_text(code))
        names = _names(code)
        space = function.__globals__
        for name in names:
            if name in space:
                self.add(name, space[name], names)
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            try:
                self.add(name, cell.cell_contents, names)
            except ValueError:  # a name that has no value yet
                continue
        self.add("defaults", (function.__defaults__, function.__kwdefaults__), names)

    def add(self, name: str, value: Any, names: Iterable[str]) -> None:
        """What `name` means in a function that uses `names`."""
        if isinstance(value, FunctionType):
            self.add_function(value)
        elif isinstance(value, ModuleType):
            self._add_module(value, names)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, (tuple, list)):
            for item in value:
                self.add(name, item, names)
        elif isinstance(inner := _inner_function(value), FunctionType):
            self.parts.add(f"options {inner.__qualname__} {_text(getattr(value, 'targetoptions', None))}")
            self.add_function(inner)
        else:
            self.parts.add(f"constant {name} {_text(value)}")

    def _add_module(self, module: ModuleType, names: Iterable[str]) -> None:
        if _is_versioned(module.__name__):
            return
        space = vars(module)
        for name in names:
            member = (module.__name__, name)
            if name in space and member not in self._members:
                self._members.add(member)
                self.add(name, space[name], names)

    def _add_class(self, kind: type) -> None:
        if not self._is_new(kind) or _is_versioned(kind.__module__):
            return
        for name, value in vars(kind).items():
            if isinstance(value, FunctionType):
                self.add_function(value)
            elif not name.startswith("__"):
                self.parts.add(f"constant {kind.__qualname__}.{name} {_text(value)}")


def _inner_function(value: Any) -> Any:
    """The Python function of what numba made of one: njit, an intrinsic or cfunc; None of anything else."""
    for name in ("py_func", "_defn", "__wrapped__"):
        try:
            inner = getattr(value, name, None)
        except Exception:  # an object may refuse any name that it does not know
            return None
        if inner is not None:
            return inner
    return None


def _is_versioned(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _VERSIONED


def _names(code: CodeType) -> frozenset[str]:
    """All names in a function and in those inside it."""
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return frozenset(code.co_names).union(*map(_names, inner))


def _code_text(code: CodeType) -> str:
    """A function that is in no file."""
    consts = [_code_text(c) if isinstance(c, CodeType) else _text(c) for c in code.co_consts]
    return f"code {code.co_code.hex()} {consts} {code.co_names} {code.co_varnames} {code.co_freevars}"


@cache
def _file_hash(path: str) -> str:
    try:
        return f"file {hashlib.sha256(Path(path).read_bytes()).hexdigest()}"
    except OSError:
        return ""


def _text(value: Any) -> str:
    """A value as text that is the same in every process."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{_text(k)}: {_text(v)}' for k, v in value.items()))}}}"
    if isinstance(value, (set, frozenset)):
        return f"set({sorted(map(_text, value))})"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    return _ADDRESS.sub("", repr(value))
