"""Which of a config's regular expressions takes which name: the first that matches all of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from recgrad.errors import ConfigError, Problem


def assign_by_pattern(names: Sequence[str], patterns: Sequence[str], where: str, what: str) -> list[int]:
    """For each name the position of the first pattern that matches all of it; −1 for none.

    Args:
        names: of what is shared out.
        patterns: the regex_pattern of each message of a repeated field.
        where: the field's path in the config, for errors.
        what: what the names are names of, such as "table".

    Raises:
        ConfigError: patterns that are none, or that get nothing, with the nearest of the names.
    """
    problems: list[Problem] = []
    compiled: list[re.Pattern[str] | None] = []
    for i, pattern in enumerate(patterns):
        try:
            compiled.append(re.compile(pattern))
        except re.error as error:
            compiled.append(None)
            problems.append(
                Problem(f"{where}[{i}].regex_pattern", f"'{pattern}' is not a regular expression: {error}")
            )
    owners = [
        next((i for i, regex in enumerate(compiled) if regex is not None and regex.fullmatch(name)), -1)
        for name in names
    ]
    for i, regex in enumerate(compiled):
        if regex is not None and i not in owners:
            problems.append(Problem(f"{where}[{i}].regex_pattern", _why_nothing(regex, names, what)))
    if problems:
        raise ConfigError(problems)
    return owners


def _why_nothing(regex: re.Pattern[str], names: Sequence[str], what: str) -> str:
    taken = sum(regex.fullmatch(name) is not None for name in names)
    if taken:
        return f"all {taken} that '{regex.pattern}' matches are taken by earlier patterns; move it up"
    nearest = ", ".join(_nearest_names(regex.pattern, names)) or "none"
    return f"'{regex.pattern}' matches no {what} (it must match the whole name); nearest: {nearest}"


def _nearest_names(pattern: str, names: Sequence[str]) -> list[str]:
    """The three names that are most like a pattern, read as if it were a name."""
    plain = re.sub(r"[\\^$*+?()|\[\]{}]|\.(?=[*+?])", "", pattern)
    return difflib.get_close_matches(plain, names, n=3, cutoff=0.0)
