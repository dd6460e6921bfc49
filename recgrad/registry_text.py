"""What registered components say of themselves, read from the text of their files.

A list of what there is needs names and docstrings, not classes: importing every class of a kind, and torch
with them, takes many times as long as reading their files.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from recgrad.registry import MENTION, REGISTRATION


@dataclass(frozen=True)
class Written:
    """A component as its file describes it.

    Attributes:
        name: its config name.
        doc: its docstring.
        module_doc: the docstring of its file.
    """

    name: str
    doc: str
    module_doc: str


def written_names(package: str, variable: str) -> list[str] | None:
    """The names that files of a package register in a registry, or None if only importing them would tell.

    Args:
        package: imported no more than the packages that it is in.
        variable: what the files call the registry.
    """
    sources = _sources(package)
    if sources is None:
        return None
    return sorted(name for source in sources for name in _names(source, variable))


def written_components(package: str, variable: str) -> list[Written] | None:
    """The components that files of a package register, by name; None and arguments as for `written_names`."""
    sources = _sources(package)
    if sources is None:
        return None
    found = [
        written for source in sources if _names(source, variable) for written in _components(source, variable)
    ]
    return sorted(found, key=lambda written: written.name)


def _sources(package: str) -> list[str] | None:
    """The texts of a package's files that register something; None if one cannot be told from its text."""
    spec = find_spec(package)
    sources = []
    for found in pkgutil.iter_modules(spec.submodule_search_locations if spec is not None else None):
        if found.name.startswith("_"):
            continue
        module = f"{package}.{found.name}"
        home = found.module_finder.find_spec(module, None)
        source = getattr(home.loader, "get_source", lambda _: None)(module) if home is not None else None
        if source is None or len(REGISTRATION.findall(source)) != len(MENTION.findall(source)):
            return None
        if MENTION.search(source):
            sources.append(source)
    return sources


def _names(source: str, variable: str) -> list[str]:
    return [name for called, _, name in REGISTRATION.findall(source) if called == variable]


def _components(source: str, variable: str) -> Iterator[Written]:
    """The classes and functions of a file under each name that they are registered by."""
    tree = ast.parse(source)
    module_doc = ast.get_docstring(tree) or ""
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            for decorator in node.decorator_list:
                name = _registered(decorator, variable)
                if name is not None:
                    yield Written(name, ast.get_docstring(node) or "", module_doc)


def _registered(decorator: ast.expr, variable: str) -> str | None:
    """The name in `VARIABLE.register("name")`, or None for another decorator."""
    if not (isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Attribute)):
        return None
    holder = decorator.func.value
    called = holder.id if isinstance(holder, ast.Name) else getattr(holder, "attr", None)
    if decorator.func.attr != "register" or called != variable or len(decorator.args) != 1:
        return None
    argument = decorator.args[0]
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else None
