"""Finished batches of files whose rows are known beforehand, epoch after epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import torch

from recgrad.data.bad_rows import BadRowTally
from recgrad.data.batch import Batch, KeyedJagged
from recgrad.data.batching import LoadedBatch, LoadedUnit, UnitEncoder
from recgrad.data.loader_settings import LoaderSettings
from recgrad.data.order import EpochPlan, Segment, plan_epoch, take_segments
from recgrad.data.pipeline import Pipeline
from recgrad.data.position import (
    RANKS,
    Lot,
    Position,
    Share,
    deal_batches,
    deal_rows,
    identify,
    join_lots,
    join_positions,
    lots_left,
    split_positions,
)
from recgrad.data.readers.reader import BLOCK_ROWS, Block, Reader
from recgrad.data.units import Assembler, Unit, Window, WindowSlice
from recgrad.errors import DataError

logger = logging.getLogger("recgrad.data")


class Loader:
    """Reads, encodes and delivers the batches of a dataset, ahead of the consumer.

    The order of an epoch is a function of (seed, epoch) and the files alone. `position` says
    where the last batch ended that `epoch()` gave out, and is what a later `epoch()` takes to go
    on with exactly the rows that follow, in this or another process, with any number of
    threads.

    Attributes:
        position: where the last batch ended that was given out.
        endless: rows come as long as the run lasts, and a pass never ends.
        event_time: of the latest event of that batch, in seconds since 1970; None where nothing says it.
        asked_to_stop: whether who waits for a batch no longer wants it.
    """

    endless: bool = False
    position: Any
    event_time: float | None = None

    def __init__(self, reader: Reader, encoder: UnitEncoder, settings: LoaderSettings) -> None:
        self._reader = reader
        self._encoder = encoder
        self.settings = settings
        self._files = identify(reader.identities)
        self._said_joined = False
        self.asked_to_stop: Callable[[], bool] = lambda: False
        self.position = self._start(0)

    @property
    def num_rows(self) -> int:
        """Rows that this rank reads in an epoch."""
        return self._plan(0).num_rows

    @property
    def num_batches(self) -> int | None:
        """Batches that this rank gives out in an epoch; None when they are cut by cost."""
        return None if self.settings.cost else self._plan(0).num_batches

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """All columns of the dataset."""
        return tuple(self._reader.schema.names)

    @property
    def local_paths(self) -> tuple[str, ...]:
        """Those files of the dataset that lie on this machine's disks."""
        return self._reader.local_paths

    @property
    def timed(self) -> bool:
        """Whether batches may have event times, or there is a lag."""
        return bool(self._encoder.timestamp)

    @property
    def lag(self) -> float | None:
        """Messages that wait at the brokers; None where that is not known."""
        return None

    def read_position(self, text: str) -> Any:
        """The position of this rank that `to_json` of a position wrote."""
        return Position.from_json(text)

    def join_positions(self, texts: Sequence[str]) -> str:
        """The positions of all ranks as one text."""
        return join_positions(texts)

    def epoch(self, epoch: int = 0, position: Position | None = None) -> Iterator[Batch]:
        """The batches of an epoch, from its start or from a position in it.

        Threads run until the iterator ends or is closed.
        """
        for loaded in self._loaded(epoch, position):
            yield loaded.batch

    def epoch_with_rows(
        self, epoch: int = 0, position: Position | None = None
    ) -> Iterator[tuple[Batch, pa.Table]]:
        """As `epoch`, each batch with the carried columns of its rows."""
        for loaded in self._loaded(epoch, position):
            yield loaded.batch, loaded.carried

    def position_from(self, text: str) -> Position:
        """Where this rank resumes, from the positions of all ranks that `join_positions` joined.

        For the same number of ranks that is the rank's own position. For another number, what
        all ranks together had not consumed is dealt again: the batches stay as the epoch's first
        plan has them (with their order, masks and negatives) and go to the ranks in consecutive
        runs of equally many, some padded by a batch of no rows. Batches that are cut by cost
        are cut again, so their sizes and negatives differ from those of the first plan. From
        the next epoch on, the plan is that of the new number of ranks.

        Raises:
            DataError: the files or another setting changed, or a rank's position is missing.
        """
        positions = split_positions(text)
        settings = self.settings
        first, ranks = positions[0], len(positions)
        said = dict(first.settings).get(RANKS, str(ranks))
        if said != str(ranks):
            raise DataError(
                f"data: the saved position is that of {ranks} of {said} ranks; all of them are needed"
            )
        if ranks == settings.world_size:
            own = positions[settings.rank]
            return self._check_position(own.epoch, own)
        then = replace(settings, world_size=ranks)
        first.check(then.order_settings(), self._files)
        lots: list[Lot] = []
        for rank, position in enumerate(positions):
            share = position.share or self._whole(position.epoch, rank, ranks)
            lots += lots_left(share.lots, position.rows, position.ahead)
        return replace(self._start(first.epoch), share=self._deal(first.epoch, lots, positions))

    def _deal(self, epoch: int, lots: Sequence[Lot], positions: Sequence[Position]) -> Share:
        """This rank's share of the lots that are left at `positions`."""
        settings = self.settings
        lots = join_lots(lots)
        num_batches = None
        if settings.cost:
            dealt = deal_rows(lots, settings.world_size)
        else:
            last = self._plan(epoch, lots[0].rank, lots[0].ranks).last_batch if lots else 0
            dealt, num_batches = deal_batches(
                lots, settings.world_size, batch_size=settings.batch_size, last=last
            )
        before = positions[0].share or Share((), None)
        return Share(
            lots=dealt[settings.rank],
            num_batches=num_batches,
            rows_before=before.rows_before + sum(position.rows_seen for position in positions),
            bad_before=before.bad_before + sum(position.bad_rows for position in positions),
        )

    def empty_batch(self) -> Batch:
        """A batch of no rows, for a rank that has none where others have; its negatives have no ids."""
        return self._nothing.batch

    def _loaded(self, epoch: int, position: Position | None) -> Iterator[LoadedBatch]:
        begin = self._check_position(epoch, position)
        share = begin.share or self._whole(epoch, self.settings.rank, self.settings.world_size)
        here = begin  # this iterator's own: another one of the same loader may run in between
        self.position = here
        tally = BadRowTally(
            self.settings.max_bad_row_ratio,
            share.rows_before + begin.rows_seen,
            share.bad_before + begin.bad_rows,
        )
        for shift, encoded in self._encoded(epoch, share, begin):
            if encoded.skipped is not None:
                tally.note(encoded.skipped)
            for loaded in encoded.batches:
                start, stop, bad = loaded.start + shift, loaded.stop + shift, loaded.bad_rows
                tally.add(stop - start, bad)
                kept = bool(loaded.batch.size or self._encoder.keep_empty)
                here = here.after(start, stop, bad_rows=bad, batches=int(kept))
                self.position = here
                self.event_time = loaded.event_time
                if kept:
                    yield loaded
        tally.finish()
        while self._encoder.keep_empty and here.batches < (share.num_batches or 0):
            here = replace(here, batches=here.batches + 1)
            self.position = here
            yield self._nothing

    def _encoded(self, epoch: int, share: Share, begin: Position) -> Iterator[tuple[int, LoadedUnit]]:
        """Units of the share from a position on, each with what makes its rows those of the share."""
        for first, lot in share.numbered():
            shift = first - lot.start
            plan = self._plan(epoch, lot.rank, lot.ranks)
            start = max(begin.rows - shift, lot.start)
            if not self.settings.cost:
                start = plan.next_batch(start)
            if start >= lot.stop:
                continue
            self._say_joined(plan)
            done = tuple((low - shift, high - shift) for low, high in begin.ahead)
            pipeline = self._pipeline(plan, start, lot.stop, done)
            try:
                for _, encoded in pipeline.results():
                    yield shift, encoded
            finally:
                pipeline.close()

    def _pipeline(
        self, plan: EpochPlan, start: int, stop: int, done: tuple[tuple[int, int], ...]
    ) -> Pipeline[LoadedUnit]:
        """Units of rows `start` to `stop` of a plan, without those that are done; windows are read whole."""
        settings = self.settings
        assembler = Assembler(
            plan,
            start_row=start,
            stop_row=stop,
            done=done,
            unit_batches=settings.unit_batches,
            costs=settings.cost,
        )
        begin, _ = plan.window(plan.window_of(start))
        _, end = plan.window(plan.window_of(stop - 1))
        unit_rows = settings.unit_batches * settings.batch_size
        return Pipeline(
            take_segments(plan.segments, begin, end),
            self._read,
            assembler,
            self._encoder,
            threads=settings.threads,
            row_budget=plan.window_rows + max(1, settings.threads) * BLOCK_ROWS,
            ahead=settings.threads + 1 + BLOCK_ROWS // unit_rows,
            in_order=settings.in_order or settings.cost is not None,
        )

    def _read(self, segment: Segment) -> Iterator[Block]:
        """The rows of a segment; those of its fragment before and after it are passed over."""
        fragment = self._reader.fragments[segment.fragment]
        at = 0
        for block in self._reader.read(fragment, self._encoder.columns):
            size = block.table.num_rows
            low, high = max(segment.start - at, 0), min(segment.stop - at, size)
            if high > low:
                placed = replace(block, file=fragment.file, first_row=fragment.first_row + at)
                yield placed.slice(low, high)
            at += size
            if at >= segment.stop:
                return

    def _plan(self, epoch: int, rank: int | None = None, ranks: int | None = None) -> EpochPlan:
        """What rank `rank` of `ranks` delivers in an epoch; this rank unless told otherwise."""
        settings = self.settings
        return plan_epoch(
            self._counts,
            batch_size=settings.batch_size,
            shuffle=settings.shuffle,
            window_batches=settings.window_batches,
            seed=settings.seed,
            epoch=epoch,
            rank=settings.rank if rank is None else rank,
            world_size=settings.world_size if ranks is None else ranks,
            drop_remainder=settings.drop_remainder,
        )

    def _whole(self, epoch: int, rank: int, ranks: int) -> Share:
        """All that a rank delivers in an epoch."""
        plan = self._plan(epoch, rank, ranks)
        lot = Lot(ranks, rank, 0, plan.num_rows)
        return Share((lot,), None if self.settings.cost else plan.num_batches)

    @cached_property
    def _counts(self) -> list[int]:
        return [fragment.num_rows for fragment in self._reader.fragments]

    def _start(self, epoch: int) -> Position:
        return Position(epoch, 0, 0, (), 0, self.settings.order_settings(), self._files)

    def _check_position(self, epoch: int, position: Position | None) -> Position:
        if position is None:
            return self._start(epoch)
        if position.epoch != epoch:
            raise ValueError(f"the position must be of epoch {epoch}, got one of epoch {position.epoch}")
        position.check(self.settings.order_settings(), self._files)
        return position

    def _say_joined(self, plan: EpochPlan) -> None:
        joined = plan.num_batches and plan.num_rows == plan.num_batches * plan.batch_size + 1
        if joined and not self._said_joined and not self.settings.cost:
            self._said_joined = True
            logger.info(
                "the last batch of an epoch would have one row; the batch before takes it and has %d rows",
                plan.batch_size + 1,
            )

    @cached_property
    def _nothing(self) -> LoadedBatch:
        schema = self._reader.schema
        table = pa.table({name: pa.array([], schema.field(name).type) for name in self._encoder.columns})
        window = Window(0, 0, (Block(table),), replace(self._plan(0), shuffle=False))
        loaded = self._encoder(Unit(0, (WindowSlice(window, 0, 0),), (0, 0))).batches[0]
        return without_negative_ids(loaded)


def without_negative_ids(loaded: LoadedBatch) -> LoadedBatch:
    """A batch of no rows whose negatives have no ids."""
    negatives = loaded.batch.negatives
    if negatives is None:
        return loaded
    # Rows that are looked up count as touched, and some optimizers move them without a gradient.
    batch = replace(loaded.batch, negatives=replace(negatives, sparse=_without_ids(negatives.sparse)))
    return replace(loaded, batch=batch)


def _without_ids(ids: KeyedJagged) -> KeyedJagged:
    """The same bags, empty."""
    weights = None if ids.weights is None else ids.weights[:0]
    return KeyedJagged(
        ids.keys, ids.values[:0], torch.zeros_like(ids.lengths), ids.bag_counts, weights, single=False
    )
