"""Where a loader stands in an epoch, what is left of it, and how that is dealt to another number of ranks.

An epoch keeps the plan that it began with. When it is resumed with another number of ranks, the rows that
the old ranks had not consumed are dealt again; the batches that hold them, their shuffling and masks stay
those of the first plan:

    plan of 2 ranks     rank 0 [■■■■□□□□]   rank 1 [■■■■■□□□]      ■ consumed
    lots left                      [□□□□]               [□□□]      each knows its plan (ranks, rank), its rows
    shares of 3 ranks          [□□][□□][□□□]                       one or more lots each
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import Any

from recgrad.data.readers.reader import FileIdentity
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


@dataclass(frozen=True, order=True)
class Lot:
    """Rows `start` to `stop` of those that rank `rank` of `ranks` delivers in an epoch, in its order."""

    ranks: int
    rank: int
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """Rows of the lot."""
        return self.stop - self.start


@dataclass(frozen=True)
class Share:
    """What one rank delivers of an epoch; its rows are numbered 0, 1, 2 … through its lots.

    Attributes:
        lots: delivered one after another.
        num_batches: batches that every rank gives; one that has fewer ends with batches of no
            rows. None when batches are cut by cost, and ranks give as many as they have.
        rows_before: rows that all ranks together had consumed when the share was dealt.
        bad_before: bad ones among them.
    """

    lots: tuple[Lot, ...]
    num_batches: int | None
    rows_before: int = 0
    bad_before: int = 0

    def numbered(self) -> Iterator[tuple[int, Lot]]:
        """The lots, each with the number of its first row."""
        first = 0
        for lot in self.lots:
            yield first, lot
            first += lot.num_rows


@dataclass(frozen=True)
class Position:
    """Where the last consumed batch ended, with all that must be unchanged to resume there.

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


# --- what is left, dealt to another number of ranks ---


def lots_left(lots: Sequence[Lot], rows: int, ahead: Sequence[tuple[int, int]]) -> list[Lot]:
    """What is left of lots of which the first `rows` rows and the ranges `ahead` were consumed."""
    left = []
    first = 0
    for lot in lots:
        at = first + min(max(rows - first, 0), lot.num_rows)
        end = first + lot.num_rows
        for start, stop in (*sorted(ahead), (end, end)):
            start, stop = min(start, end), min(stop, end)
            if start > at:
                left.append(replace(lot, start=lot.start + at - first, stop=lot.start + start - first))
            at = max(at, stop)
        first = end
    return left


def join_lots(lots: Sequence[Lot]) -> list[Lot]:
    """The lots in the order of their plan, neighbours as one."""
    joined: list[Lot] = []
    for lot in sorted(lots):
        if joined and (lot.ranks, lot.rank, lot.start) == (
            joined[-1].ranks,
            joined[-1].rank,
            joined[-1].stop,
        ):
            joined[-1] = replace(joined[-1], stop=lot.stop)
        elif lot.num_rows:
            joined.append(lot)
    return joined


def deal_batches(
    lots: Sequence[Lot], ranks: int, *, batch_size: int, last: int
) -> tuple[list[tuple[Lot, ...]], int]:
    """Lots for each of `ranks` ranks, and the number of batches that the first of them has.

    The batches of the lots are dealt in consecutive runs whose lengths differ by one at most.
    Lots begin where batches do.

    Args:
        lots: what to deal.
        ranks: the number of ranks to deal to.
        batch_size: rows of a batch.
        last: where the last batch of each plan begins; it takes what is left.
    """
    counts = [1 + (min(lot.stop - 1, last) - lot.start) // batch_size for lot in lots]
    bounds = _even_bounds(sum(counts), ranks)
    return _deal(lots, counts, bounds, batch_size), bounds[1]


def deal_rows(lots: Sequence[Lot], ranks: int) -> list[tuple[Lot, ...]]:
    """Lots for each of `ranks` ranks, of about equally many rows.

    A cut that would part one row from the rest of its lot is moved by one row, since a batch of
    one row is of no use to BatchNorm.
    """
    counts = [lot.num_rows for lot in lots]
    cuts = {0, *accumulate(counts)}
    bounds = []
    for bound in _even_bounds(sum(counts), ranks):
        places = (bound, bound - 1, bound + 1)
        bounds.append(next(p for p in places if p in cuts or not {p - 1, p + 1} & cuts))
        cuts.add(bounds[-1])
    return _deal(lots, counts, bounds, 1)


def _even_bounds(count: int, ranks: int) -> list[int]:
    smallest, extra = divmod(count, ranks)
    return [rank * smallest + min(rank, extra) for rank in range(ranks + 1)]


def _deal(
    lots: Sequence[Lot], counts: Sequence[int], bounds: Sequence[int], step: int
) -> list[tuple[Lot, ...]]:
    """Things `bounds[r]` to `bounds[r + 1]` of the lots; lot i has `counts[i]` things of `step` rows."""
    dealt: list[list[Lot]] = [[] for _ in bounds[1:]]
    first = 0
    for lot, count in zip(lots, counts, strict=True):
        for mine, (low, high) in zip(dealt, pairwise(bounds), strict=True):
            low, high = max(low - first, 0), min(high - first, count)
            if low < high:
                # The last batch may be larger or smaller than the others.
                stop = lot.stop if high == count else lot.start + high * step
                mine.append(replace(lot, start=lot.start + low * step, stop=stop))
        first += count
    return [tuple(mine) for mine in dealt]
