"""Batches read ahead: their positions, their errors, and what ranks agree on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


def feed_of(loader: Numbers, processes: Processes | None = None, *, ask: bool = False) -> Feed:
    alone: Any = loader
    return Feed(alone, 0, None, processes=processes or Processes(), stop=StopRequest(), ask=ask)


@settings(deadline=None)
@given(st.integers(0, 6), st.lists(st.booleans(), min_size=7, max_size=7))
def test_a_batch_is_consumed_when_it_is_taken(count: int, ahead: list[bool]) -> None:
    loader = Numbers(count)
    feed = feed_of(loader)
    taken = []
    for looks in ahead:
        found = feed.take()
        if found is None:
            break
        if looks:
            feed.look_ahead()
            assert loader.position.number == min(len(taken) + 2, count)  # the loader is further
        taken.append(found)
    assert taken == [(n, f"after {n}") for n in range(1, count + 1)]
    assert feed.take() is None


def test_an_error_ahead_waits_for_its_batch() -> None:
    feed = feed_of(Numbers(3, broken=2), Ranks(2))
    assert feed.take() == (1, "after 1")
    feed.look_ahead()
    feed.prepare(lambda batch: batch)
    assert feed.flags() == [1.0, 1.0]
    feed.agree([2.0, 1.0])
    assert not feed.ready
    with pytest.raises(DataError, match="batch 2 is broken"):
        feed.take()


def test_an_error_in_preparing_waits_for_its_batch() -> None:
    def refuse(batch: Any) -> Any:
        raise DataError("an id is outside its table")

    feed = feed_of(Numbers(3), Ranks(2))
    feed.take()
    feed.look_ahead()
    feed.prepare(refuse)
    assert feed.flags() == [1.0, 1.0]
    with pytest.raises(DataError, match="outside its table"):
        feed.take()


def test_ids_are_sent_when_every_rank_has_a_batch() -> None:
    feed = feed_of(Numbers(2), Ranks(2))
    feed.agree([1.0, 0.0])
    assert not feed.ready  # nothing was read ahead
    feed.take()
    feed.look_ahead()
    feed.prepare(lambda batch: f"ids of {batch}")
    feed.agree([2.0, 0.0])
    assert feed.ready
    assert feed.prepared(str) == "ids of 2"
    assert feed.take() == (2, "after 2")
    feed.look_ahead()
    assert feed.flags() == [0.0, 0.0]
    feed.agree([0.0, 0.0])
    assert not feed.ready
    assert feed.take() is None


def test_an_error_elsewhere_keeps_ids_at_home_and_batches_coming() -> None:
    feed = feed_of(Numbers(2), Ranks(2))
    feed.take()
    feed.look_ahead()
    feed.agree([2.0, 1.0])
    assert not feed.ready
    assert feed.take() == (2, "after 2")


def test_a_rank_without_batches_goes_on_while_others_have_some() -> None:
    """The answer for a batch ahead is known; only for others is asked."""
    ranks = Ranks(2, [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    feed = feed_of(Numbers(1), ranks, ask=True)
    assert feed.take() == (1, "after 1")  # asked
    feed.look_ahead()
    assert feed.flags() == [0.0, 0.0]
    feed.agree([1.0, 0.0])  # the other has one
    assert feed.ready
    assert feed.prepared(lambda batch: f"ids of {batch}") == f"ids of {EMPTY}"
    assert feed.take() == (EMPTY, "after 1")
    assert feed.take() is None  # asked
    assert not ranks.others


def test_all_end_when_no_rank_has_a_batch_ahead() -> None:
    feed = feed_of(Numbers(1), Ranks(2, [[1.0, 0.0, 0.0]]), ask=True)
    feed.take()
    feed.look_ahead()
    feed.agree([0.0, 0.0])
    assert not feed.ready
    assert feed.take() is None


def test_closing_ends_the_reader() -> None:
    loader = Numbers(5)
    feed = feed_of(loader)
    feed.take()
    feed.look_ahead()
    assert not loader.closed
    feed.close()
    assert loader.closed
