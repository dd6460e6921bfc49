"""What fine-tuning took from a checkpoint, and what it did not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Anew:
    """Something that begins anew, and why."""

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

    def __str__(self) -> str:
        text = f"{self.name}: {self.rows:,} rows"
        if self.dropped_rows:
            text += f", {self.dropped_rows:,} dropped"
        if self.num_rows != self.old_num_rows:
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
        reinitialised: weights and tables that begin anew, with the reason.
        unused: names in the checkpoint that nothing took.
        optimizer_restored: parameters and tables whose optimizer state was taken.
        optimizer_anew: those whose optimizer state begins anew, with the reason.
    """

    step: int
    restored: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    tables: tuple[RestoredTable, ...]
    reinitialised: tuple[Anew, ...]
    unused: tuple[str, ...]
    optimizer_restored: tuple[str, ...]
    optimizer_anew: tuple[Anew, ...]

    def __str__(self) -> str:
        rows = sum(table.rows for table in self.tables)
        lines = [
            f"restored from step {self.step}: {len(self.restored)} parameters, {len(self.tables)} tables "
            f"with {rows:,} rows; {len(self.renamed)} renamed, {len(self.reinitialised)} reinitialised, "
            f"{len(self.unused)} unused; optimizer state of {len(self.optimizer_restored)}"
        ]
        lines += [f"  table          {table}" for table in self.tables]
        lines += [f"  renamed        {own} (there: {theirs})" for own, theirs in self.renamed]
        lines += [f"  reinitialised  {item.name}: {item.reason}" for item in self.reinitialised]
        lines += [f"  unused         {name}" for name in self.unused]
        lines += [
            f"  optimizer      {names}: {reason}" for reason, names in self._optimizer_reasons().items()
        ]
        return "\n".join(lines)

    def _optimizer_reasons(self) -> dict[str, str]:
        """Names by reason: a whole model often shares one."""
        grouped: dict[str, list[str]] = {}
        for item in self.optimizer_anew:
            grouped.setdefault(item.reason, []).append(item.name)
        return {
            reason: ", ".join(names)
            if len(names) <= 5
            else f"{', '.join(names[:5])} and {len(names) - 5} more"
            for reason, names in grouped.items()
        }
