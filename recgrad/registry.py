"""Registries: a component is one file that registers itself under its config name.

A registry fills itself on first use by importing every module of its package whose name
does not begin with an underscore, and by loading the Python entry points of the group
`recgrad.<kind>s`, so a new file, here or in another distribution, is found without a list
to keep.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from recgrad.errors import RecgradError, nearest

T = TypeVar("T")
C = TypeVar("C")


class UnknownNameError(RecgradError, KeyError):
    """A name that nothing is registered under."""

    def __str__(self) -> str:
        return str(self.args[0])


class Registry(Generic[T]):
    """Components of one kind by config name.

    Args:
        kind: what an entry is, in the singular, as error messages and `recgrad list` say it.
        package: the package whose modules hold the entries.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._entries: dict[str, T] = {}
        self._filled = False

    def register(self, name: str) -> Callable[[C], C]:
        """Class or function decorator that files its target under `name`."""

        def add(component: C) -> C:
            if name in self._entries:
                raise ValueError(f"{self.kind} '{name}' is registered twice")
            self._entries[name] = component  # type: ignore[assignment]
            return component

        return add

    def __getitem__(self, name: str) -> T:
        self._fill()
        if name not in self._entries:
            raise UnknownNameError(f"no {self.kind} '{name}'{nearest(name, self._entries)}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        self._fill()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._fill()
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        self._fill()
        return len(self._entries)

    def items(self) -> list[tuple[str, T]]:
        """(name, component) pairs, sorted by name."""
        return [(name, self._entries[name]) for name in self]

    def _fill(self) -> None:
        if self._filled:
            return
        self._filled = True
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            if not module.name.startswith("_"):
                importlib.import_module(f"{self.package}.{module.name}")
        for entry in entry_points(group=f"recgrad.{self.kind.replace(' ', '_')}s"):
            self.register(entry.name)(entry.load())


def import_object(class_path: str) -> Any:
    """The object that a dotted path such as `mypkg.optim.MyOptimizer` names."""
    module_name, _, name = class_path.rpartition(".")
    if not module_name:
        raise RecgradError(f"class_path '{class_path}' has no module; write it as 'package.Class'")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise RecgradError(f"class_path '{class_path}': cannot import '{module_name}' ({error})") from error
    if not hasattr(module, name):
        raise RecgradError(
            f"class_path '{class_path}': '{module_name}' has no '{name}'{nearest(name, vars(module))}"
        )
    return getattr(module, name)
