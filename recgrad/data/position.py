"""Where a loader stands in an epoch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from recgrad.data.readers.reader import FileIdentity
from recgrad.errors import DataError


@dataclass(frozen=True)
class Position:
    """Where the last consumed batch ended, with all that must be unchanged to go on from there.

    Attributes:
        epoch: the epoch.
        batches: batches consumed.
        rows: rows consumed without a gap, counted in the order of delivery.
        ahead: (start, end) of rows consumed beyond a gap, when batches come in any order.
        bad_rows: rows skipped as bad so far.
        settings: what the order depends on: seed, batch size, shuffling, number of ranks.
        files: name and identity (size and hash) of each file.
    """

    epoch: int
    batches: int
    rows: int
    ahead: tuple[tuple[int, int], ...] = ()
    bad_rows: int = 0
    settings: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> str:
        """The position as one line of JSON."""
        return json.dumps({**asdict(self), "settings": dict(self.settings)})

    @classmethod
    def from_json(cls, text: str) -> Position:
        """The position that `to_json` wrote."""
        values = json.loads(text)
        return cls(
            epoch=int(values["epoch"]),
            batches=int(values["batches"]),
            rows=int(values["rows"]),
            ahead=tuple((int(start), int(stop)) for start, stop in values["ahead"]),
            bad_rows=int(values["bad_rows"]),
            settings=tuple(sorted((str(key), str(value)) for key, value in values["settings"].items())),
            files=tuple((str(name), str(mark)) for name, mark in values["files"]),
        )

    def check(self, settings: Sequence[tuple[str, str]], files: Sequence[tuple[str, str]]) -> None:
        """Raise a DataError unless the loader reads the same files in the same order."""
        now = dict(settings)
        for name, value in self.settings:
            if now.get(name) != value:
                raise DataError(
                    f"data: {name} was {value} when the position was saved and is {now.get(name)} now; "
                    "go on with the same setting, or start the epoch again"
                )
        if tuple(files) != self.files:
            raise DataError(f"data: {_difference(dict(self.files), dict(files))}")


def identify(identities: Sequence[FileIdentity]) -> tuple[tuple[str, str], ...]:
    """Name and mark of each file; the mark changes when the file does."""
    return tuple((item.name, f"{item.size}:{item.digest}") for item in identities)


def _difference(before: dict[str, str], now: dict[str, str]) -> str:
    for name, mark in before.items():
        if name not in now:
            return f"{name} was part of the data when the position was saved and is not now; put it back"
        if now[name] != mark:
            size, new_size = mark.partition(":")[0], now[name].partition(":")[0]
            how = f"{size} bytes then, {new_size} now" if size != new_size else "same size, other content"
            return (
                f"{name} changed since the position was saved ({how}); put the old file back, or start the "
                "epoch again"
            )
    added = next(name for name in now if name not in before)
    return f"{added} was added since the position was saved; take it away, or start the epoch again"
