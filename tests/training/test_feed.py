"""Batches read ahead: their positions, their errors, and what ranks agree on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.errors import DataError
from recgrad.training.feed import Feed
from recgrad.training.processes import Environment, Processes
from recgrad.training.signals import StopRequest

EMPTY = "no rows"


@dataclass
class At:
    number: int

    def to_json(self) -> str:
        return f"after {self.number}"


class Numbers:
    """A loader of `count` batches; `broken` is one that cannot be read."""

    def __init__(self, count: int, broken: int | None = None) -> None:
        self.count, self.broken = count, broken
        self.position = At(0)
        self.closed = False
        self.endless = self.timed = False
        self.event_time = None

    def epoch(self, epoch: int, position: Any = None) -> Iterator[Any]:
        try:
            for number in range(1, self.count + 1):
                if number == self.broken:
                    raise DataError(f"batch {number} is broken")
                self.position = At(number)
                yield number
        finally:
            self.closed = True

    def empty_batch(self) -> Any:
        return EMPTY


class Ranks(Processes):
    """This rank among `world_size`; `others` is what the others' flags add up to, question by question."""

    def __init__(self, world_size: int, others: Sequence[Sequence[float]] = ()) -> None:
        super().__init__(Environment(0, world_size, 0, world_size, distributed=True))
        self.others = list(others)

    def sum(self, values: Sequence[float]) -> list[float]:
        return [a + b for a, b in zip(values, self.others.pop(0), strict=True)]


class SentIds:
    """Ids of a batch that note what becomes of them."""

    def __init__(self, batch: Any) -> None:
        self.batch, self.sent, self.arrived = batch, 0, 0

    def send(self) -> None:
        self.sent += 1

    def arrive(self) -> None:
        self.arrived += 1


class Ids:
    """A model that prepares ids; `refused` is a batch that has wrong ones."""

    def __init__(self, sends_ahead: bool = True, refused: int | None = None) -> None:
        self.engine = SimpleNamespace(sends_ahead=sends_ahead)
        self.refused = refused
        self.made: list[SentIds] = []

    def prepare(self, batch: Any) -> SentIds:
        if batch == self.refused:
            raise DataError("an id is outside its table")
        self.made.append(SentIds(batch))
        return self.made[-1]


def feed_of(
    loader: Numbers,
    processes: Processes | None = None,
    *,
    ask: bool = False,
    model: Any = None,
) -> Feed:
    alone: Any = loader
    return Feed(
        alone,
        0,
        None,
        model=model or Ids(),
        processes=processes or Processes(),
        stop=StopRequest(alone=processes is None),
        ask=ask,
    )


def others(having: float, failed: float = 0.0, *, broken: float = 0.0, signal: float = 0.0) -> list[float]:
    """What another rank hands in with its losses: rows, broken, signals, who has a batch ahead, the loss."""
    return [4.0, broken, signal, 0.0, having, failed, 4.0]


def share(feed: Feed, *, last: bool = False, loss: float = 1.0) -> Any:
    return feed.share(4, {"total": loss}, last=last)


def taken(feed: Feed) -> Any:
    """The next batch and the position after it."""
    found = feed.take()
    return None if found is None else (found.batch, found.position)


@settings(deadline=None)
@given(st.integers(0, 6), st.lists(st.booleans(), min_size=7, max_size=7))
def test_a_batch_is_consumed_when_it_is_taken(count: int, ahead: list[bool]) -> None:
    loader, found = Numbers(count), []
    feed = feed_of(loader, Ranks(2, [others(1.0 if n + 2 <= count else 0.0) for n in range(7)]))
    for looks, fed in zip(ahead, feed):
        share(feed, last=not looks)
        assert loader.position.number == min(len(found) + 1 + looks, count)  # the loader is further
        found.append((fed.batch, fed.position))
    assert found == [(n, f"after {n}") for n in range(1, count + 1)]
    assert feed.take() is None


def test_an_engine_that_does_not_send_reads_nothing_ahead() -> None:
    loader = Numbers(3)
    feed = feed_of(loader, model=Ids(sends_ahead=False))
    for number, (batch, ids, _) in enumerate(feed, 1):
        assert (batch, ids) == (number, None)
        share(feed)
        assert loader.position.number == number


def test_an_error_ahead_waits_for_its_batch() -> None:
    ranks = Ranks(2, [others(1.0)])
    feed = feed_of(Numbers(3, broken=2), ranks)
    assert taken(feed) == (1, "after 1")
    assert share(feed).flags == (2.0, 1.0)
    with pytest.raises(DataError, match="batch 2 is broken"):
        feed.take()


def test_an_error_in_preparing_waits_for_its_batch() -> None:
    feed = feed_of(Numbers(3), Ranks(2, [others(1.0)]), model=Ids(refused=2))
    feed.take()
    assert share(feed).flags == (2.0, 1.0)
    with pytest.raises(DataError, match="outside its table"):
        feed.take()


def test_ids_are_sent_when_every_rank_has_a_batch() -> None:
    model = Ids()
    feed = feed_of(Numbers(2), Ranks(2, [others(1.0), others(0.0)]), model=model)
    first = feed.take()
    assert first is not None
    assert first.ids is None  # nothing was read ahead
    share(feed)
    assert [(ids.batch, ids.sent) for ids in model.made] == [(2, 1)]
    assert feed.take() == (2, model.made[0], "after 2")
    assert share(feed).flags == (0.0, 0.0)
    assert len(model.made) == 1
    assert feed.take() is None


@pytest.mark.parametrize(
    "other", [others(1.0, 1.0), others(0.0), others(1.0, broken=1.0), others(1.0, signal=1.0)]
)
def test_ids_stay_at_home_and_batches_come(other: list[float]) -> None:
    """After an error elsewhere, where another rank has no batch, and before the run ends."""
    model = Ids()
    feed = feed_of(Numbers(2), Ranks(2, [other]), model=model)
    feed.take()
    share(feed)
    assert [ids.sent for ids in model.made] == [0]
    assert taken(feed) == (2, "after 2")


def test_ids_stay_at_home_after_a_loss_that_is_not_finite() -> None:
    model = Ids()
    feed = feed_of(Numbers(2), Ranks(2, [others(1.0)]), model=model)
    feed.take()
    assert share(feed, loss=math.nan).broken == 1
    assert feed.take() == (2, model.made[0], "after 2")
    assert model.made[0].sent == 0


def test_a_rank_without_batches_resumes_while_others_have_some() -> None:
    """The answer for a batch ahead is known; only for others is asked."""
    ranks = Ranks(2, [[1.0, 0.0, 0.0], others(1.0), [0.0, 0.0, 0.0]])
    model = Ids()
    feed = feed_of(Numbers(1), ranks, ask=True, model=model)
    assert taken(feed) == (1, "after 1")  # asked
    assert share(feed).flags == (1.0, 0.0)  # the other has one
    assert [(ids.batch, ids.sent) for ids in model.made] == [(EMPTY, 1)]
    assert feed.take() == (EMPTY, model.made[0], "after 1")
    assert feed.take() is None  # asked
    assert not ranks.others


def test_all_end_when_no_rank_has_a_batch_ahead() -> None:
    feed = feed_of(Numbers(1), Ranks(2, [[1.0, 0.0, 0.0], others(0.0)]), ask=True)
    feed.take()
    share(feed)
    assert feed.take() is None


def test_leaving_ends_the_reader_and_awaits_what_was_sent() -> None:
    loader, model = Numbers(5), Ids()
    with feed_of(loader, Ranks(2, [others(1.0)]), model=model) as feed:
        feed.take()
        share(feed)
        assert not loader.closed
        assert model.made[0].arrived == 0
    assert loader.closed
    assert model.made[0].arrived == 1


def test_after_an_error_nothing_is_awaited() -> None:
    loader, model = Numbers(5), Ids()

    def fail() -> None:
        with feed_of(loader, Ranks(2, [others(1.0)]), model=model) as feed:
            feed.take()
            share(feed)
            raise DataError("of the batch")

    with pytest.raises(DataError, match="of the batch"):
        fail()
    assert loader.closed
    assert model.made[0].arrived == 0


class Rows:
    """Batches of a stream, each with so many rows."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.endless, self.timed, self.event_time, self.position = True, False, None, At(0)
        self.sizes = sizes

    def epoch(self, epoch: int, position: Any = None) -> Iterator[Any]:
        for size in self.sizes:
            yield SimpleNamespace(size=size)


def test_ranks_that_wait_for_rows_of_a_stream_say_so_together() -> None:
    waited: list[int] = []
    loader: Any = Rows([0, 0, 0, 5])
    nobody, somebody = [0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]  # has rows, is alive, signals
    feed = Feed(
        loader,
        0,
        None,
        model=Ids(False),  # type: ignore[arg-type]
        processes=Ranks(2, [nobody, nobody, somebody, nobody]),
        stop=StopRequest(alone=False),
        ask=True,
        waiting=lambda: waited.append(1),
    )
    first = feed.take()
    assert first is not None
    assert first.batch.size == 0  # another rank has rows
    assert len(waited) == 2
    second = feed.take()
    assert second is not None
    assert second.batch.size == 5
    assert len(waited) == 2
