"""Which of a config's regular expressions takes which name: the first that matches all of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from recgrad.errors import ConfigError, Problem

_MOST_REPEATS, _MOST_CHOICES = 3, 10
_ESCAPES = re.compile(r"\\[1-9]|\(\?P=")
_HIDDEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # escaped characters, and classes
_CHOICE = re.compile(r"\||(?<![(*+?}])\?")
_REPEAT = re.compile(r"[*+]|\{\d*,?\d*\}")


class Pattern:
    """A regular expression that names are matched with as a whole, in time that its text cannot make explode.

    Python's `re` tries every way in which nested or many repeats can share a name, which takes longer than
    anyone waits for `(a+)+b`. So it matches only patterns of at most three repeats, none of them of a group,
    and ten choices (`|`, `?`), which take at most a thousand times the cube of the name's length. All others
    go to RE2, which reads a name once; it has no look-around. Back-references are refused: no way of matching
    them has a bound.

    Raises:
        ValueError: what is wrong with the pattern.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        try:
            self._python: re.Pattern[str] | None = re.compile(pattern)
        except re.error as error:
            raise ValueError(str(error)) from error
        except (RecursionError, OverflowError) as error:
            raise ValueError("nested or repeated too often") from error
        if _ESCAPES.search(pattern.replace("\\\\", "")):
            raise ValueError("back-references (\\1, (?P=name)) are not taken: their time has no bound")
        plain = _HIDDEN.sub("x", pattern)
        too_many = len(_REPEAT.findall(plain)) > _MOST_REPEATS or len(_CHOICE.findall(plain)) > _MOST_CHOICES
        if too_many or re.search(r"\)(?:[*+]|\{)", plain):
            self._python = None
            self._check_linear()

    def matches(self, name: str) -> bool:
        """Whether the pattern matches all of a name."""
        if self._python is not None:
            return self._python.fullmatch(name) is not None
        return self._linear(name)

    def _check_linear(self) -> None:
        from pyarrow import ArrowInvalid

        try:
            self._linear("")
        except ArrowInvalid as error:
            reason = str(error).rpartition(": ")[2]
            raise ValueError(
                f"has a repeated group, over {_MOST_REPEATS} repeats or over {_MOST_CHOICES} choices: only "
                f"RE2 bounds the time of such, and it does not take this one ({reason}); write it with fewer "
                "of them, or without look-around"
            ) from error

    def _linear(self, name: str) -> bool:
        import pyarrow as pa
        import pyarrow.compute as pc

        whole = rf"\A(?:{self.pattern})\z"
        return bool(pc.match_substring_regex(pa.array([name]), pattern=whole)[0].as_py())


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
    compiled: list[Pattern | None] = []
    for i, pattern in enumerate(patterns):
        try:
            compiled.append(Pattern(pattern))
        except ValueError as error:
            compiled.append(None)
            problems.append(
                Problem(f"{where}[{i}].regex_pattern", f"'{pattern}' is not a regular expression: {error}")
            )
    owners = [
        next((i for i, regex in enumerate(compiled) if regex is not None and regex.matches(name)), -1)
        for name in names
    ]
    for i, regex in enumerate(compiled):
        if regex is not None and i not in owners:
            problems.append(Problem(f"{where}[{i}].regex_pattern", _why_nothing(regex, names, what)))
    if problems:
        raise ConfigError(problems)
    return owners


def _why_nothing(regex: Pattern, names: Sequence[str], what: str) -> str:
    taken = sum(map(regex.matches, names))
    if taken:
        return f"all {taken} that '{regex.pattern}' matches are taken by earlier patterns; move it up"
    nearest = ", ".join(_nearest_names(regex.pattern, names)) or "none"
    return f"'{regex.pattern}' matches no {what} (it must match the whole name); nearest: {nearest}"


def _nearest_names(pattern: str, names: Sequence[str]) -> list[str]:
    """The three names that are most like a pattern, read as if it were a name."""
    plain = re.sub(r"[\\^$*+?()|\[\]{}]|\.(?=[*+?])", "", pattern)
    return difflib.get_close_matches(plain, names, n=3, cutoff=0.0)
