"""Errors that the user can fix.

The command prints them without a traceback and ends with exit code 2. Each message reads
path, problem, value, remedy, in that order.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from recgrad.synonyms import same_meaning
from recgrad.terminal import printable

LONGEST_SUGGESTED = 80
_MOST_COMPARED = 2000


class RecgradError(Exception):
    """Something the user can fix: a config, an input file, a checkpoint, a command line.

    Its text holds nothing that a terminal would obey, whatever names are in it.
    """

    def __str__(self) -> str:
        return printable(str(self.args[0]) if len(self.args) == 1 else super().__str__())


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where it is and what it is, with the remedy in the text."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class ConfigError(RecgradError):
    """All problems of a config at once, one line each."""

    def __init__(self, problems: Iterable[Problem] | str) -> None:
        if isinstance(problems, str):
            problems = [Problem("", problems)]
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class DataError(RecgradError):
    """Input that cannot be read or encoded, named by file, row, column and value."""


class CheckpointError(RecgradError):
    """A checkpoint that is missing, damaged or does not fit the model."""


class BundleError(RecgradError):
    """An exported model that is missing, damaged, of another version, or does not give its golden scores."""


class LostRankError(CheckpointError):
    """A checkpoint that was not written because another rank did not do its part in time."""


class ProcessError(RecgradError):
    """A process of a distributed run that is late or gone, or failed by itself.

    Attributes:
        reported: whether another process has told, or will tell, the user of it.
    """

    def __init__(self, message: str, *, reported: bool = False) -> None:
        super().__init__(message)
        self.reported = reported


def whole_path(path: str | os.PathLike[str]) -> str:
    """Where a relative path leads, to stand behind it in an error: ` (/home/me/data/a.csv)`, else nothing."""
    text = os.path.expanduser(os.fspath(path))
    return "" if os.path.isabs(text) or "://" in text else f" ({os.path.abspath(text)})"


_SYSTEM_REASONS = {
    errno.ENOENT: "no such file or folder; check the path",
    errno.EACCES: "permission denied; check the permissions of it and of the folders above it",
    errno.EPERM: "permission denied; check the permissions of it and of the folders above it",
    errno.ENOTDIR: "a part of the path is a file where a folder must be; check the path",
    errno.EISDIR: "it is a folder; name a file",
    errno.EEXIST: "a file of that name is in the way; choose another path",
    errno.ELOOP: "a symbolic link leads back to itself; mend the link",
    errno.ENOSPC: "no space left on the disk; free some",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "the file would be too large; raise the limit (ulimit -f), or use another disk",
    errno.EROFS: "the file system is read-only; choose another path",
    errno.ENAMETOOLONG: "the name is too long; shorten it",
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n)",
}


def system_reason(error: OSError) -> str:
    """What a system error says of a path and what to do about it; `where: ` goes before it."""
    known = _SYSTEM_REASONS.get(error.errno or 0)
    return known or error.strerror or str(error)


def nearest(name: str, known: Iterable[str]) -> str:
    """The hint that ends an unknown-name error: `; did you mean 'x'?`, or nothing when no name is near.

    Long names, and names among more than 2,000, get none: comparing them would take long.
    """
    if len(name) > LONGEST_SUGGESTED:
        return ""
    known = list(known)
    if len(known) > _MOST_COMPARED:
        return ""
    same = same_meaning(name, known)
    if same is not None:
        return f"; did you mean '{same}'?"
    close = get_close_matches(name, known, n=5, cutoff=0.6)
    if not close:
        return ""

    def far(other: str) -> tuple[int, int, int, int]:
        shared = next((i for i, (a, b) in enumerate(zip(name, other)) if a != b), len(other))
        return _distance(name, other), abs(len(name) - len(other)), -shared, known.index(other)

    return f"; did you mean '{min(close, key=far)}'?"


def _distance(a: str, b: str) -> int:
    """The fewest insertions, deletions, substitutions and swaps of neighbours between two names."""
    before, above = [0] * (len(b) + 1), list(range(len(b) + 1))
    for i, left in enumerate(a):
        row = [i + 1]
        for j, right in enumerate(b):
            row.append(min(above[j + 1] + 1, row[j] + 1, above[j] + (left != right)))
            if i and j and left == b[j - 1] and a[i - 1] == right:
                row[-1] = min(row[-1], before[j - 1] + 1)
        before, above = above, row
    return above[-1]
