"""Names of a package that are imported when they are first used, and that `dir` shows all the same.

A package writes its names twice, once for type checkers and once for Python:

    __all__ = ["DeepFM"]

    if TYPE_CHECKING:
        from recgrad.models.deepfm import DeepFM
    else:
        __getattr__, __dir__ = lazy_names(__name__, __all__, {"DeepFM": "recgrad.models.deepfm"})

Packages of components generate both lists: see `recgrad/public_names.py`. Type
checkers do not see a `__getattr__`, which would let every misspelt name pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str,
    public: Sequence[str],
    homes: Mapping[str, str],
    convert: Callable[[Any], Any] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

    Args:
        package: its name.
        public: its `__all__`, which `dir` shows.
        homes: the module of each name that is not imported yet; a module itself is its own home.
        convert: what becomes of what was found there.
    """

    def get(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            what = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(what, name=name, obj=sys.modules[package])
        module = import_module(home)
        found = module if home == f"{package}.{name}" else getattr(module, name)
        return found if convert is None else convert(found)

    def names() -> list[str]:
        return sorted(public)

    return get, names
