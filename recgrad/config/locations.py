"""Where the fields of a config stand in its file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import cached_property

REPEATED = "is set twice; the last one counts"


class RepeatedWarning(UserWarning):
    """A config sets one value twice; the last one counts, as protobuf has it."""


class Locations:
    """Lines of a config's fields.

    Paths are written as `feature_configs[2].id_feature.embedding_dim`. A path that the file
    does not hold, such as a field left out, is found at the nearest message around it.

    Args:
        source: what errors call the file.
        text: the file's text.
        find_offsets: says where each field begins in the text; asked on first use.

    Attributes:
        repeated: a warning for each value that the file sets more than once.
    """

    def __init__(
        self, source: str = "", text: str = "", find_offsets: Callable[[], Mapping[str, int]] = dict
    ) -> None:
        self.source = source
        self._find_offsets = find_offsets
        self._text = text
        self._newlines: list[int] | None = None
        self._forgotten: set[str] = set()
        self._origins: dict[str, str] = {}
        self.repeated: list[str] = []

    def line(self, path: str) -> int | None:
        """The line of a field, from 1, or None when it does not come from the file."""
        offset: int | None = None
        path = self._origins.get(path, path)
        while path:
            if path in self._forgotten:
                return None
            if offset is None:
                offset = self._offsets.get(path)
            path = parent(path)
        return None if offset is None else self.position(offset)[0]

    @cached_property
    def _offsets(self) -> Mapping[str, int]:
        return self._find_offsets()

    def where(self, path: str) -> str:
        """How errors name a field: `deepfm.config:18 train_config.dense_optimizer`."""
        line = self.line(path)
        if line is not None:
            return f"{self.source}:{line} {path}"
        return path or self.source

    def forget(self, path: str) -> None:
        """Drop the lines of `path` and of all within it, since an edit has replaced them."""
        self._forgotten.add(path)

    def move(self, origins: Mapping[str, str]) -> None:
        """Find fields that come from elsewhere in the file there: their paths, and those they come from."""
        self._origins = self._origins | {
            path: self._origins.get(origin, origin) for path, origin in origins.items()
        }

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset in the text, both from 1."""
        if self._newlines is None:
            self._newlines = [i for i, character in enumerate(self._text) if character == "\n"]
        line = bisect_right(self._newlines, offset - 1)
        start = self._newlines[line - 1] + 1 if line else 0
        return line + 1, offset - start + 1

    def at(self, offset: int, path: str = "") -> str:
        """How syntax errors name a place: file, line, column and the field around it."""
        line, column = self.position(offset)
        place = f"{self.source}:{line}:{column}"
        return f"{place} {path if len(path) <= 160 else path[:100] + '…'}" if path else place

    def excerpt(self, offset: int) -> str:
        """The line that holds `offset`, and a caret below it; long lines are cut."""
        start = self._text.rfind("\n", 0, offset) + 1
        end = self._text.find("\n", offset)
        line = self._text[start : len(self._text) if end < 0 else end].rstrip("\r")
        column = min(offset - start, len(line))
        if len(line) > 100:
            cut = max(0, column - 50)
            line, column = line[cut : cut + 100], column - cut
        line = "".join(character if character.isprintable() else " " for character in line)
        return f"    {line}\n    {' ' * column}^"


def parent(path: str) -> str:
    """The path of the message or list around a field; empty at the top."""
    return path[: max(path.rfind("."), path.rfind("["), 0)]
