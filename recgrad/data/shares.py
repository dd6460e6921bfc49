"""What is left of an epoch, and how it is dealt to another number of ranks.

An epoch keeps the plan that it began with. When it goes on with another number of ranks, the
rows that the old ranks had not consumed are dealt anew; the batches that hold them, their
shuffling and masks stay those of the first plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise


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
