"""The order of an epoch: which rows a rank reads, in which order, and where batches end.

Everything here is a pure function of row counts and of (seed, epoch, rank), so any process can
find the place where another one stopped. Rows of an epoch are numbered 0, 1, 2 … in the
order in which a rank delivers them; a position is such a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recgrad.kernels import cached_njit

_FRAGMENTS, _WINDOW, _MASK = 1, 2, 3


@dataclass(frozen=True)
class Segment:
    """Rows `start` to `stop` of a fragment."""

    fragment: int
    start: int
    stop: int


@dataclass(frozen=True)
class EpochPlan:
    """What one rank reads in one epoch.

    The rows of the segments, one after another, are cut into windows of `window_rows`; when
    shuffling, the rows of each window are permuted. Batches are cut from what results.

    Attributes:
        segments: what is read, in this order.
        num_rows: rows of all segments.
        num_batches: batches when they are cut by rows; the last one takes what is left.
        batch_size: rows of a batch.
        window_rows: rows of a window; the last window takes what is left.
        shuffle: permute the rows of each window.
        seed, epoch, rank: what the permutations depend on.
    """

    segments: tuple[Segment, ...]
    num_rows: int
    num_batches: int
    batch_size: int
    window_rows: int
    shuffle: bool
    seed: int
    epoch: int
    rank: int

    @property
    def num_windows(self) -> int:
        """Windows end where batches do, so rows that join the last batch join the last window."""
        return -(-self.num_batches * self.batch_size // self.window_rows) if self.num_rows else 0

    def window(self, index: int) -> tuple[int, int]:
        """First row and end of a window."""
        last = index == self.num_windows - 1
        return index * self.window_rows, self.num_rows if last else (index + 1) * self.window_rows

    def window_of(self, row: int) -> int:
        """The window in which a row lies."""
        return min(row // self.window_rows, self.num_windows - 1)

    @property
    def last_batch(self) -> int:
        """Where the last batch begins."""
        return max(self.num_batches - 1, 0) * self.batch_size

    def batch_end(self, start: int) -> int:
        """End of the batch that begins at row `start`, a multiple of the batch size."""
        last = start // self.batch_size >= self.num_batches - 1
        return self.num_rows if last else start + self.batch_size

    def next_batch(self, row: int) -> int:
        """The row to resume from after `row` rows, which may have been counted on another rank.

        Ranks have equally many batches, but the last one may differ by a row or two.
        """
        return row if row <= (self.num_batches - 1) * self.batch_size else self.num_rows

    def permutation(self, window: int) -> npt.NDArray[np.int64] | None:
        """The order of a window's rows, or None when they stay as they are."""
        if not self.shuffle:
            return None
        start, stop = self.window(window)
        return permutation(stop - start, self.seed, self.epoch, _WINDOW, self.rank, window)

    def mask(self, window: int, probability: float) -> npt.NDArray[np.bool_]:
        """True with `probability` for each row of a window, in the order of delivery."""
        start, stop = self.window(window)
        return random_mask(stop - start, probability, self.seed, self.epoch, _MASK, self.rank, window)


def plan_epoch(
    counts: Sequence[int],
    *,
    batch_size: int,
    shuffle: bool,
    window_batches: int,
    seed: int,
    epoch: int,
    rank: int = 0,
    world_size: int = 1,
    drop_remainder: bool = False,
) -> EpochPlan:
    """The share of a rank in an epoch over fragments of `counts` rows.

    Fragments are permuted when shuffling. The rows in that order are dealt to the ranks in
    consecutive shares whose sizes differ by one row at most, so a rank reads files and row
    groups of its own and shares only those where its rows begin and end. Every rank has the
    same number of batches: that of the smallest share, whose last batch takes what is left.
    When there are fewer rows than ranks, some ranks have one batch of no rows. With
    `drop_remainder` every batch has exactly `batch_size` rows and the rest is dropped.
    """
    order = np.arange(len(counts), dtype=np.int64)
    if shuffle:
        order = permutation(len(counts), seed, epoch, _FRAGMENTS)
    total = int(sum(counts))
    smallest, extra = divmod(total, world_size)
    start = rank * smallest + min(rank, extra)
    stop = start + smallest + (rank < extra)
    num_batches = count_batches(smallest, batch_size, drop_remainder)
    if total and not smallest and not drop_remainder:
        num_batches = 1
    if drop_remainder:
        stop = start + num_batches * batch_size
    return EpochPlan(
        segments=tuple(_cut(counts, order, start, stop)),
        num_rows=stop - start,
        num_batches=num_batches,
        batch_size=batch_size,
        window_rows=window_batches * batch_size,
        shuffle=shuffle,
        seed=seed,
        epoch=epoch,
        rank=rank,
    )


def count_batches(rows: int, batch_size: int, drop_remainder: bool) -> int:
    """Batches of `rows` rows; a last batch of one row is joined to the one before it."""
    full, rest = divmod(rows, batch_size)
    if drop_remainder or rest == 0:
        return full
    return full + (rest > 1 or full == 0)


def _cut(counts: Sequence[int], order: npt.NDArray[np.int64], start: int, stop: int) -> list[Segment]:
    """Rows `start` to `stop` of the fragments in `order`."""
    sizes = np.asarray(counts, np.int64)[order]
    ends = np.cumsum(sizes)
    first = int(np.searchsorted(ends, start, side="right"))
    segments = []
    for at in range(first, len(order)):
        begin = int(ends[at] - sizes[at])
        if begin >= stop:
            break
        low, high = max(start, begin) - begin, min(stop, int(ends[at])) - begin
        if high > low:
            segments.append(Segment(int(order[at]), low, high))
    return segments


def take_segments(segments: Sequence[Segment], start: int, stop: int) -> tuple[Segment, ...]:
    """Rows `start` to `stop` of the segments."""
    taken = []
    first = 0
    for segment in segments:
        size = segment.stop - segment.start
        low, high = max(start - first, 0), min(stop - first, size)
        if low < high:
            taken.append(Segment(segment.fragment, segment.start + low, segment.start + high))
        first += size
    return tuple(taken)


def random_bits(count: int, *key: int) -> npt.NDArray[np.uint64]:
    """`count` random 64-bit words that depend on `key` alone.

    They come straight from the bit generator, whose stream NumPy keeps for ever, unlike that
    of the methods built on it.
    """
    bits: npt.NDArray[np.uint64] = np.random.PCG64(np.random.SeedSequence(key)).random_raw(count)
    return bits


def random_mask(count: int, probability: float, *key: int) -> npt.NDArray[np.bool_]:
    """`count` truth values, each true with `probability`, that depend on `key` alone."""
    return random_bits(count, *key) < np.uint64(min(int(probability * 2.0**64), 2**64 - 1))


def permutation(count: int, *key: int) -> npt.NDArray[np.int64]:
    """A random order of 0 … count − 1 that depends on `key` alone."""
    return _shuffled(random_bits(count, *key))


@cached_njit(nogil=True)
def _shuffled(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Fisher and Yates' shuffle, one random word a place.

    The place to swap with is the high half of a 32 × 32 bit product; its bias is below
    count / 2³².
    """
    count = len(bits)
    order = np.arange(count)
    for i in range(count - 1, 0, -1):
        j = ((bits[i] >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32)
        order[i], order[j] = order[j], order[i]
    return order
