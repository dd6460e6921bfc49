"""Where a loader stands in an epoch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from recgrad.data.readers.reader import FileIdentity
from recgrad.data.shares import Lot, Share
from recgrad.errors import DataError

RANKS = "the number of ranks"
"""The setting that may change within an epoch, see `Loader.position_from`."""

FROM_WEIGHTS = (
    "begin another run from these weights: --fine_tune_checkpoint OLD_MODEL_DIR --model_dir NEW_DIR takes "
    "the optimizers' state along (incremental training), with --ignore_restore_optimizer it leaves that out "
    "(fine-tuning)"
)
"""What to do where a run cannot be resumed because its data, or their order, are others."""

_COMMON = ("epoch", "settings", "files")


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
        share: what the rank delivers when it is not what the plan of the epoch gives it, since the
            epoch began with another number of ranks. Batches and rows are counted in it then.
    """

    epoch: int
    batches: int
    rows: int
    ahead: tuple[tuple[int, int], ...] = ()
    bad_rows: int = 0
    settings: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    share: Share | None = None

    @property
    def rows_seen(self) -> int:
        """Rows consumed, with a gap or without."""
        return self.rows + sum(stop - start for start, stop in self.ahead)

    def after(self, start: int, stop: int, *, bad_rows: int, batches: int) -> Position:
        """The position after rows `start` to `stop`, of which `bad_rows` were bad, as `batches` batches."""
        rows = self.rows
        joined: list[tuple[int, int]] = []
        for first, last in sorted({*self.ahead, (start, stop)}):
            if first <= rows:
                rows = max(rows, last)
            elif joined and joined[-1][1] == first:
                joined[-1] = (joined[-1][0], last)
            else:
                joined.append((first, last))
        return replace(
            self,
            batches=self.batches + batches,
            rows=rows,
            ahead=tuple(joined),
            bad_rows=self.bad_rows + bad_rows,
        )

    def to_json(self) -> str:
        """The position as one line of JSON."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["settings"] = dict(self.settings)
        if self.share is None:
            del values["share"]
        else:
            lots = [(lot.ranks, lot.rank, lot.start, lot.stop) for lot in self.share.lots]
            values["share"] = {**asdict(self.share), "lots": lots}
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> Position:
        """The position that `to_json` wrote."""
        return cls._from_values(json.loads(text))

    @classmethod
    def _from_values(cls, values: Mapping[str, Any]) -> Position:
        share = values.get("share")
        return cls(
            epoch=int(values["epoch"]),
            batches=int(values["batches"]),
            rows=int(values["rows"]),
            ahead=tuple((int(start), int(stop)) for start, stop in values["ahead"]),
            bad_rows=int(values["bad_rows"]),
            settings=tuple(sorted((str(key), str(value)) for key, value in values["settings"].items())),
            files=tuple((str(name), str(mark)) for name, mark in values["files"]),
            share=None
            if share is None
            else Share(
                lots=tuple(Lot(*map(int, lot)) for lot in share["lots"]),
                num_batches=None if share["num_batches"] is None else int(share["num_batches"]),
                rows_before=int(share["rows_before"]),
                bad_before=int(share["bad_before"]),
            ),
        )

    def check(self, settings: Sequence[tuple[str, str]], files: Sequence[tuple[str, str]]) -> None:
        """Raise a DataError unless the loader reads the same files in the same order."""
        now = dict(settings)
        for name, value in self.settings:
            if now.get(name) != value:
                raise DataError(
                    f"data: {name} was {value} when the position was saved and is {now.get(name)} now; "
                    f"resume with the same setting, or {FROM_WEIGHTS}"
                )
        if tuple(files) != self.files:
            raise DataError(f"data: {_difference(dict(self.files), dict(files))}")


def join_positions(texts: Sequence[str]) -> str:
    """The positions of ranks 0, 1, 2 … as one text; that of a single rank stays as it is.

    Raises:
        DataError: the ranks read different files, or read them in different ways.
    """
    if len(texts) == 1:
        return texts[0]
    positions = [json.loads(text) for text in texts]
    first = positions[0]
    for rank, position in enumerate(positions):
        ranks = position["settings"].get(RANKS)
        if (ranks, position["epoch"]) != (str(len(texts)), first["epoch"]):
            raise ValueError(
                f"the positions must be of {len(texts)} ranks in epoch {first['epoch']}, got one of {ranks} "
                f"ranks in epoch {position['epoch']} for rank {rank}"
            )
        for name, value in position["settings"].items():
            if first["settings"].get(name) != value:
                raise DataError(
                    f"data: {name} is {first['settings'].get(name)} on rank 0 and {value} on rank {rank}; "
                    "start all ranks with the same config"
                )
        if position["files"] != first["files"]:
            raise DataError(
                f"data: rank {rank} reads other files than rank 0 ({len(first['files'])} files there, "
                f"{len(position['files'])} here, or with other content); give all ranks the same files"
            )
    own = [{name: value for name, value in item.items() if name not in _COMMON} for item in positions]
    return json.dumps({**{name: first[name] for name in _COMMON}, "ranks": own})


def split_positions(text: str) -> list[Position]:
    """The positions of ranks 0, 1, 2 … that `join_positions` joined."""
    values = json.loads(text)
    if "ranks" not in values:
        return [Position._from_values(values)]
    common = {name: values[name] for name in _COMMON}
    return [Position._from_values({**common, **own}) for own in values["ranks"]]


def identify(identities: Sequence[FileIdentity]) -> tuple[tuple[str, str], ...]:
    """Name and mark of each file; the mark changes when the file does."""
    return tuple((item.name, f"{item.size}:{item.digest}") for item in identities)


def _difference(before: dict[str, str], now: dict[str, str]) -> str:
    for name, mark in before.items():
        if name not in now:
            return (
                f"{name} was part of the data when the position was saved and is not now; put it back, or, "
                f"to train on other data, {FROM_WEIGHTS}"
            )
        if now[name] != mark:
            size, new_size = mark.partition(":")[0], now[name].partition(":")[0]
            how = f"{size} bytes then, {new_size} now" if size != new_size else "same size, other content"
            return (
                f"{name} changed since the position was saved ({how}); put the old file back, or, to train "
                f"on other data, {FROM_WEIGHTS}"
            )
    added = next(name for name in now if name not in before)
    return (
        f"{added} was added since the position was saved; take it away until the epoch has ended, or, to "
        f"train on other data, {FROM_WEIGHTS}"
    )
