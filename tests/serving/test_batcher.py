"""When a request is answered at once, and when it waits for others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from recgrad.serving.batcher import INLINE_S, Batcher, Waiting
from recgrad.serving.metrics import Metrics
from recgrad.serving.settings import ServerSettings

Own = Waiting[int]


def batcher(loop: asyncio.AbstractEventLoop, sizes: list[int], row_s: float = 0.0) -> Batcher[Own, int]:
    def answer(batch: Sequence[Own]) -> list[int]:
        sizes.append(len(batch))
        return [waiting.rows for waiting in batch]

    metrics = Metrics(None, ["/"])
    return Batcher(answer, -1, settings=ServerSettings("b"), metrics=metrics, loop=loop, row_s=row_s)


def test_a_client_that_is_alone_is_answered_at_once() -> None:
    async def run() -> None:
        loop, sizes = asyncio.get_running_loop(), list[int]()
        own = batcher(loop, sizes)
        assert own.answer_alone(Own(loop.create_future(), 0, 1e18, rows=3)) == 3
        own.clients = 2
        assert own.answer_alone(Own(loop.create_future(), 0, 1e18, rows=3)) is None
        assert sizes == [1]

    asyncio.run(run())


def test_what_comes_in_one_turn_is_scored_together() -> None:
    async def run() -> None:
        loop, sizes = asyncio.get_running_loop(), list[int]()
        own = batcher(loop, sizes)
        both = [Own(loop.create_future(), 0, 1e18, rows=n) for n in (1, 2)]
        for waiting in both:
            own.submit(waiting)
        third = Own(loop.create_future(), 0, 1e18, rows=5)
        assert own.answer_alone(third) is None, "others wait already"
        assert await asyncio.gather(*(waiting.future for waiting in both)) == [1, 2]
        own.submit(third)
        assert await third.future == 5
        assert own.answer_alone(Own(loop.create_future(), 0, 1e18, rows=7)) == 7
        assert sizes == [2, 1, 1]

    asyncio.run(run())


def test_long_batches_are_scored_in_parts_with_the_network_in_between() -> None:
    async def run() -> None:
        loop, sizes = asyncio.get_running_loop(), list[int]()
        own = batcher(loop, sizes, row_s=INLINE_S / 100)
        many = [Own(loop.create_future(), 0, 1e18, rows=40) for _ in range(6)]
        for waiting in many:
            own.submit(waiting)
        await many[0].future
        assert sizes == [2], "the rest waits for its turn"
        assert await asyncio.gather(*(waiting.future for waiting in many)) == [40] * 6
        assert sum(sizes) == 6

    asyncio.run(run())


def test_a_small_batch_waits_for_what_arrives_but_not_for_long() -> None:
    async def run() -> None:
        loop, sizes = asyncio.get_running_loop(), list[int]()
        own = batcher(loop, sizes)
        first, second = (Own(loop.create_future(), 0, 1e18, rows=n) for n in (1, 2))
        own.arriving = 1
        own.submit(first)
        for _ in range(3):
            await asyncio.sleep(0)
        own.arriving = 0
        own.submit(second)
        assert await asyncio.gather(first.future, second.future) == [1, 2]
        own.arriving = 1  # and never comes
        own.submit(third := Own(loop.create_future(), 0, 1e18, rows=3))
        assert await third.future == 3
        assert sizes == [2, 1]

    asyncio.run(run())


def test_a_request_that_takes_long_is_not_answered_on_the_event_loop() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        own = batcher(loop, [], row_s=INLINE_S)
        assert own.answer_alone(Own(loop.create_future(), 0, 1e18, rows=2)) is None

    asyncio.run(run())
