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


def test_a_request_without_company_is_answered_at_once() -> None:
    async def run() -> None:
        loop, sizes = asyncio.get_running_loop(), list[int]()
        own = batcher(loop, sizes)
        assert own.answer_alone(Own(loop.create_future(), 0, 1e18, rows=3)) == 3
        own.arriving = 1
        assert own.answer_alone(Own(loop.create_future(), 0, 1e18, rows=3)) is None
        assert sizes == [1]

    asyncio.run(run())


def test_after_a_batch_of_several_the_next_request_waits_for_company() -> None:
    async def run() -> None:
        loop, sizes = asyncio.get_running_loop(), list[int]()
        own = batcher(loop, sizes)
        both = [Own(loop.create_future(), 0, 1e18, rows=n) for n in (1, 2)]
        for waiting in both:
            own.submit(waiting)
        third = Own(loop.create_future(), 0, 1e18, rows=5)
        assert own.answer_alone(third) is None, "others wait already"
        assert await asyncio.gather(*(waiting.future for waiting in both)) == [1, 2]
        assert own.answer_alone(third) is None
        own.submit(third)
        assert await third.future == 5
        assert own.answer_alone(Own(loop.create_future(), 0, 1e18, rows=7)) == 7
        assert sizes == [2, 1, 1]

    asyncio.run(run())


def test_a_request_that_takes_long_is_not_answered_on_the_event_loop() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        own = batcher(loop, [], row_s=INLINE_S)
        assert own.answer_alone(Own(loop.create_future(), 0, 1e18, rows=2)) is None

    asyncio.run(run())
