"""What a check of a config found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recgrad.config.class_paths import ClassPath
from recgrad.errors import ConfigError, Problem


@dataclass(frozen=True)
class Report:
    """Problems stop a run; hints do not.

    Attributes:
        class_paths: the classes that a run would import from outside Recgrad.
    """

    problems: Sequence[Problem] = ()
    hints: Sequence[Problem] = ()
    class_paths: Sequence[ClassPath] = ()

    @property
    def ok(self) -> bool:
        """Whether the config can run."""
        return not self.problems

    def raise_problems(self) -> None:
        """Raise all problems as one ConfigError, if there are any."""
        if self.problems:
            raise ConfigError(self.problems)
