"""Registries: a component is one file that registers itself under its config name.

A registry looks for its components on first use: in every module of its package whose name
does not begin with an underscore, and in the Python entry points of its group, such as
`recgrad.losses`, so a new file, here or in another distribution, is found without a list
to keep. Names are read from the text of the modules; a module is imported when one of its
components is asked for, since importing all of them takes longer than most commands do.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from recgrad.errors import RecgradError, nearest
from recgrad.limits import keep_limits

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])


class UnknownNameError(RecgradError, KeyError):
    """A name that nothing is registered under."""


class Registry(Generic[T]):
    """Components of one kind by config name.

    Args:
        kind: what an entry is, in the singular, as error messages and `recgrad list` say it.
        package: the package whose modules hold the entries.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self.group = entry_point_group(kind)
        self._entries: dict[str, T] = {}
        self._homes: dict[str, str | EntryPoint] = {}  # of names that are not imported yet
        self._surveyed = False

    def register(self, name: str) -> Callable[[C], C]:
        """Class or function decorator that files its target under `name`, and has it keep its limits."""

        def add(component: C) -> C:
            home = self._homes.get(name)
            if name in self._entries or (home is not None and home not in sys.modules):
                raise self._twice(name)
            self._homes.pop(name, None)
            kept = keep_limits(component)
            self._entries[name] = kept  # type: ignore[assignment]
            return kept

        return add

    def __getitem__(self, name: str) -> T:
        self._survey()
        if name not in self._entries and name in self._homes:
            self._load(name)
        if name not in self._entries:
            raise UnknownNameError(f"no {self.kind} '{name}'{nearest(name, self)}")
        return self._entries[name]

    def get(self, name: str) -> T | None:
        """The component of a name, or None."""
        return self[name] if name in self else None  # noqa: SIM401

    def resolve(self, class_path: str) -> type[Any]:
        """The class that a config's class_path names: an import path or, without a dot, a name here.

        Whoever asks must see that it is a subclass of the kind before calling it: a config may name
        anything that can be imported.
        """
        if "." in class_path:
            return keep_limits(import_class(class_path))
        try:
            return _as_class(self[class_path], class_path)
        except UnknownNameError as error:
            raise RecgradError(
                f"class_path '{class_path}': {error}; write 'package.Class', "
                f"or a name that a package gives in its entry points '{self.group}'"
            ) from error

    def resolve_subclass(self, class_path: str, base: type[Any], methods: str) -> type[Any]:
        """The class that a config's class_path names, which must be a subclass of `base`.

        Args:
            class_path: as for `resolve`.
            base: what classes of the user's own are made from.
            methods: what a subclass has to write, for the error.
        """
        try:
            found = self.resolve(class_path)
        except RecgradError as error:
            raise ValueError(str(error)) from error
        if not issubclass(found, base):
            raise ValueError(
                f"class_path: {class_path} is not a subclass of {base.__module__}.{base.__qualname__}; "
                f"subclass it and write {methods}"
            )
        return found

    def __contains__(self, name: object) -> bool:
        self._survey()
        return name in self._entries or name in self._homes

    def __iter__(self) -> Iterator[str]:
        self._survey()
        return iter(sorted({*self._entries, *self._homes}))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def items(self) -> list[tuple[str, T]]:
        """(name, component) pairs, sorted by name."""
        self._survey()
        for name in list(self._homes):
            if name in self._homes:
                self._load(name)
        return sorted(self._entries.items())

    def _load(self, name: str) -> None:
        """Import what registers a name."""
        home = self._homes[name]
        if isinstance(home, str):
            importlib.import_module(home)
            self._homes.pop(name, None)
            return
        del self._homes[name]  # its module may register it by the decorator as well
        try:
            component = home.load()
        except (ImportError, AttributeError) as error:
            self._homes[name] = home
            raise RecgradError(
                f"{self.kind} '{name}': cannot load {home.value}, which an installed package "
                f"gives in its entry points '{self.group}' ({error})"
            ) from error
        known: Any = self._entries.get(name)
        if known is None or inspect.unwrap(known) is not inspect.unwrap(component):
            self.register(name)(component)

    def _survey(self) -> None:
        """Find the names, here and in other distributions."""
        if self._surveyed:
            return
        self._surveyed = True
        package = importlib.import_module(self.package)
        sources = {
            f"{self.package}.{found.name}": found.module_finder
            for found in pkgutil.iter_modules(package.__path__)
            if not found.name.startswith("_")
        }
        called = self._variables()
        names = {module: self._registered_in(module, finder, called) for module, finder in sources.items()}
        for module, known in names.items():
            # One that cannot be read may also make the decorator that another uses.
            if None in names.values():
                importlib.import_module(module)
            elif known and module not in sys.modules:
                for name in known:
                    self._expect(name, module)
        for entry in entry_points_of(self.group):
            self._expect(entry.name, entry)

    def _expect(self, name: str, home: str | EntryPoint) -> None:
        if name in self._entries or name in self._homes:
            raise self._twice(name)
        self._homes[name] = home

    def _registered_in(
        self, module: str, finder: Any, called: Mapping[str, list[Registry[Any]]]
    ) -> list[str] | None:
        """The names that a module's text registers here, or None if only importing it would tell."""
        source = finder.find_spec(module).loader.get_source(module)
        if source is None:
            return None
        found = REGISTRATION.findall(source)
        if len(found) != len(MENTION.findall(source)):
            return None
        if any(len(called.get(variable, ())) != 1 for variable, _, _ in found):
            return None
        return [name for variable, _, name in found if self in called[variable]]

    def _variables(self) -> dict[str, list[Registry[Any]]]:
        """The registries that modules of the package have, by what they call them."""
        called: dict[str, list[Registry[Any]]] = {}
        for name, module in list(sys.modules.items()):
            if name == self.package or name.startswith(f"{self.package}."):
                for variable, value in list(vars(module).items()):
                    if isinstance(value, Registry) and value not in called.setdefault(variable, []):
                        called[variable].append(value)
        return called

    def _twice(self, name: str) -> ValueError:
        return ValueError(f"{self.kind} '{name}' is registered twice")


REGISTRATION = re.compile(
    r"""^@(?:\w+\.)*(\w+)\.register\((["'])([^"'\\\n]+)\2\)[ \t]*(?:\#.*)?$""", re.MULTILINE
)
MENTION = re.compile(r"\.register\b")


def entry_point_group(kind: str) -> str:
    """The entry points by which other packages add components of a kind, such as `recgrad.losses`."""
    return f"recgrad.{kind.replace(' ', '_')}{'es' if kind.endswith('s') else 's'}"


def entry_points_of(group: str) -> Iterable[EntryPoint]:
    """The entry points of a group in all installed packages; nothing is loaded."""
    found: Iterable[EntryPoint] = _entry_points().select(group=group)
    return found


@functools.cache
def _entry_points() -> Any:  # Python 3.10 has a type of its own for it
    from importlib.metadata import entry_points

    return entry_points()


def import_class(class_path: str) -> type[Any]:
    """The class that a dotted path names; functions and other objects are refused, and never called."""
    return _as_class(import_object(class_path), class_path)


def _as_class(found: Any, class_path: str) -> type[Any]:
    if not isinstance(found, type):
        raise RecgradError(f"class_path '{class_path}': is not a class (it is a {type(found).__name__})")
    return found


def import_object(class_path: str) -> Any:
    """The object that a dotted path such as `mypkg.optim.MyOptimizer` names."""
    module_name, _, name = class_path.rpartition(".")
    if not module_name:
        raise RecgradError(f"class_path '{class_path}' has no module; write it as 'package.Class'")
    if not all(part.isidentifier() for part in class_path.split(".")):
        raise RecgradError(f"class_path {class_path!r} is not an import path; write it as 'package.Class'")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        # Another module that is missing is one that this module imports, and is found or not wherever it is.
        missing = f"{module_name}.".startswith(f"{getattr(error, 'name', None)}.")
        remedy = "; put the folder that it is in on PYTHONPATH, or install its package" if missing else ""
        raise RecgradError(
            f"class_path '{class_path}': cannot import '{module_name}' ({error}){remedy}"
        ) from error
    if not hasattr(module, name):
        raise RecgradError(
            f"class_path '{class_path}': '{module_name}' has no '{name}'{nearest(name, vars(module))}"
        )
    return getattr(module, name)
