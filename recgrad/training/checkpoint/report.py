"""What fine-tuning took from a checkpoint, and what it did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recgrad.embedding.living import NUM_ROWS

MOST_NAMES = 5
MOST_LINES = 10


@dataclass(frozen=True)
class Afresh:
    """Something that begins afresh, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class RestoredTable:
    """Rows of a checkpoint's table that went into one of this model.

    Attributes:
        name: the table here.
        source: its name in the checkpoint.
        rows: touched rows that were taken.
        dropped_rows: touched rows beyond the end of this, smaller, table.
        old_num_rows: height in the checkpoint.
        num_rows: height here.
    """

    name: str
    source: str
    rows: int
    dropped_rows: int
    old_num_rows: int
    num_rows: int

    @property
    def whole(self) -> bool:
        """Whether the table is as it was: all its rows were taken, and it has the same height."""
        return not self.dropped_rows and self.num_rows == self.old_num_rows

    def __str__(self) -> str:
        text = f"{self.name}: {self.rows:,} rows"
        if self.dropped_rows:
            text += f", {self.dropped_rows:,} dropped"
        if NUM_ROWS in (self.num_rows, self.old_num_rows) and self.num_rows != self.old_num_rows:
            now = "are numbered by id here" if self.num_rows == NUM_ROWS else "were numbered by id there"
            text += f" (rows {now})"
        elif self.num_rows != self.old_num_rows:
            verb = "grew" if self.num_rows > self.old_num_rows else "shrank"
            text += f" (the table {verb} from {self.old_num_rows:,} to {self.num_rows:,} rows)"
        return text


@dataclass(frozen=True)
class RestoreReport:
    """What became of every parameter and table of the model and of the checkpoint.

    Attributes:
        step: the checkpoint's step.
        restored: dense weights and buffers that were taken, by their names here.
        renamed: (name here, name in the checkpoint) of those, tables included, that the map moved.
        tables: the tables that were taken.
        reinitialised: weights and tables that begin afresh, with the reason.
        unused: names in the checkpoint that nothing took.
        optimizer_restored: parameters and tables whose optimizer state was taken.
        optimizer_afresh: those whose optimizer state begins afresh, with the reason.
    """

    step: int
    restored: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    tables: tuple[RestoredTable, ...]
    reinitialised: tuple[Afresh, ...]
    unused: tuple[str, ...]
    optimizer_restored: tuple[str, ...]
    optimizer_afresh: tuple[Afresh, ...]

    def __str__(self) -> str:
        """Counts, then the names of what was not simply restored; long lists are cut."""
        rows = sum(table.rows for table in self.tables)
        lines = [
            f"restored from step {self.step}: {len(self.restored)} parameters, {len(self.tables)} tables "
            f"with {rows:,} rows; {len(self.renamed)} renamed, {len(self.reinitialised)} reinitialised, "
            f"{len(self.unused)} unused; optimizer state of {len(self.optimizer_restored)}"
        ]
        lines += _lines("table", [str(table) for table in self.tables if not table.whole])
        lines += _lines("renamed", [f"{own} (there: {theirs})" for own, theirs in self.renamed])
        lines += _lines("reinitialised", _by_reason(self.reinitialised))
        lines += _lines("unused", [_shortened(self.unused)] if self.unused else [])
        lines += _lines("optimizer", _by_reason(self.optimizer_afresh))
        return "\n".join(lines)


def _lines(kind: str, texts: Sequence[str]) -> list[str]:
    more = [f"and {len(texts) - MOST_LINES:,} more"] if len(texts) > MOST_LINES else []
    return [f"  {kind:<13}  {text}" for text in [*texts[:MOST_LINES], *more]]


def _by_reason(items: Sequence[Afresh]) -> list[str]:
    """Names with the reason they share: a whole model often has one."""
    grouped: dict[str, list[str]] = {}
    for item in items:
        grouped.setdefault(item.reason, []).append(item.name)
    return [f"{_shortened(names)}: {reason}" for reason, names in grouped.items()]


def _shortened(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES:,} more"
