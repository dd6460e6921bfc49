"""Commands: one file each, registered under the word the user types."""

from __future__ import annotations

import argparse
import gc
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from recgrad.registry import Registry

EXIT_USER_ERROR = 2
"""The exit code of what the user can fix."""


class Command(ABC):
    """A command of `recgrad`; the first line of its docstring is its help text.

    Modules of commands import what is heavy (torch, pyarrow, matplotlib) inside `run`, so
    that `recgrad --help` answers at once.
    """

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags; spell them with dashes, underscores are accepted as well."""

    @abstractmethod
    def run(self, args: argparse.Namespace) -> int:
        """Do it; returns the exit code."""


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Imports in here run without garbage collection: it would look at a million objects that all stay.

    Nor are they looked at later, however often memory is taken and given back.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


COMMANDS: Registry[type[Command]] = Registry("command", "recgrad.cli")
