"""What a check of a config found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recgrad.errors import ConfigError, Problem


@dataclass(frozen=True)
class Report:
    """Problems stop a run; hints do not."""

    problems: Sequence[Problem] = ()
    hints: Sequence[Problem] = ()

    @property
    def ok(self) -> bool:
        """Whether the config can run."""
        return not self.problems

    def raise_problems(self) -> None:
        """Raise all problems as one ConfigError, if there are any."""
        if self.problems:
            raise ConfigError(self.problems)
