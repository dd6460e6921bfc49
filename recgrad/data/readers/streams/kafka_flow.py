"""Messages of a rank's partitions of a topic, taken in turn."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from recgrad.data.readers.reader import Block
from recgrad.data.readers.streams.messages import Decoder
from recgrad.data.readers.streams.source import Flow, Run, State
from recgrad.errors import DataError

MOST_MESSAGES = 2048
"""Messages that are decoded at once."""
MOST_BYTES = 2 << 20
HELD_BYTES = 8 << 20
"""What waits of a partition before it is paused."""
LAG_EVERY_SECS = 0.2

logger = logging.getLogger("recgrad.data")


class Mark(NamedTuple):
    """A message of a run."""

    partition: int
    offset: int
    rows: int
    used: int  # of its rows before the run


class KafkaFlow(Flow):
    """Messages of some partitions, in turn.

    Args:
        kafka: the client's module.
        consumer: not assigned yet; closed with the flow.
        topic: its name.
        state: where to begin.
        decoder: of messages.
        ends: where each partition ends now.
        bounded: read no further than that; else for ever.
        patience: seconds for which a silent partition is waited for while others have messages.
    """

    def __init__(
        self,
        kafka: Any,
        consumer: Any,
        topic: str,
        state: State,
        decoder: Decoder,
        *,
        ends: Mapping[int, int],
        bounded: bool,
        patience: float,
    ) -> None:
        self._kafka = kafka
        self._consumer = consumer
        self._topic = topic
        self._decoder = decoder
        self._until = until = ends if bounded else None
        self._patience = patience
        offsets = {int(p): int(at[0]) for p, at in state["partitions"].items()}
        self._used = {int(p): (int(at[0]), int(at[1])) for p, at in state["partitions"].items() if at[1]}
        self._queues: dict[int, deque[Any]] = {p: deque() for p in sorted(offsets)}
        self._bytes = dict.fromkeys(self._queues, 0)
        self._paused: set[int] = set()
        self._done = {p for p, at in offsets.items() if until is not None and at >= until[p]}
        self._quiet = set(state["quiet"])
        self._turn = int(state["next"])
        self._waiting_since: float | None = None
        self._said: set[str] = set()
        self._ends = dict(ends)
        self._measure_at = 0.0
        places = [kafka.TopicPartition(topic, p, at) for p, at in offsets.items() if p not in self._done]
        if places:
            consumer.assign(places)

    @property
    def ended(self) -> bool:
        return (
            not any(self._queues.values()) and self._done.issuperset(self._queues) and self._until is not None
        )

    def poll(self, timeout: float) -> Run | None:
        until = time.monotonic() + timeout
        while True:
            self._fetch(0.0)
            messages = self._take()
            self._look_at_ends()
            if messages:
                return self._run(messages)
            left = until - time.monotonic()
            if left <= 0 or self.ended:
                return None
            self._fetch(min(left, 0.1))

    def after(self, state: State, run: Run, rows: int) -> State:
        partitions = dict(state["partitions"])
        marks, quiet = run.marks
        turn = state["next"]
        order = sorted(map(int, partitions))
        for mark in marks:
            taken = min(rows, mark.rows)
            if taken < mark.rows:
                if taken:
                    partitions[str(mark.partition)] = [mark.offset, mark.used + taken]
                turn = mark.partition
                break
            partitions[str(mark.partition)] = [mark.offset + 1, 0]
            turn = order[(order.index(mark.partition) + 1) % len(order)]
            rows -= taken
        return {"partitions": partitions, "next": turn, "quiet": quiet}

    def lag(self, state: State) -> float | None:
        """As of the last poll: the client is used by the thread that polls, and by no other."""
        ends = self._ends
        return float(sum(max(ends.get(int(p), 0) - at[0], 0) for p, at in state["partitions"].items()))

    def _look_at_ends(self) -> None:
        """Note where partitions end, which fetches brought along."""
        now = time.monotonic()
        if now < self._measure_at:
            return
        self._measure_at = now + LAG_EVERY_SECS
        ends = dict(self._ends)
        for p in self._queues:
            try:
                found = self._consumer.get_watermark_offsets(
                    self._kafka.TopicPartition(self._topic, p), cached=True
                )
            except self._kafka.KafkaException:
                return
            if found is not None and found[1] >= 0:
                ends[p] = found[1]
        self._ends = ends

    def close(self) -> None:
        self._consumer.close()

    def _fetch(self, timeout: float) -> None:
        """Put what has arrived into the queues of its partitions."""
        if not self._queues:
            time.sleep(timeout)
            return
        for message in self._consumer.consume(MOST_MESSAGES, timeout):
            error = message.error()
            p = message.partition()
            if error is not None:
                self._meet(error, p, message.offset())
            elif p in self._queues and p not in self._done:
                self._queue(message, p)
        for p in [p for p in self._paused if self._bytes[p] < HELD_BYTES // 2]:
            self._paused.discard(p)
            self._consumer.resume([self._kafka.TopicPartition(self._topic, p)])

    def _queue(self, message: Any, p: int) -> None:
        end = None if self._until is None else self._until[p]
        if end is None or message.offset() < end:
            self._queues[p].append(message)
            self._bytes[p] += len(message)
        if end is not None and message.offset() >= end - 1:
            self._done.add(p)
        elif self._bytes[p] > HELD_BYTES and p not in self._paused:
            self._paused.add(p)
            self._consumer.pause([self._kafka.TopicPartition(self._topic, p)])

    def _meet(self, error: Any, p: int, offset: int) -> None:
        """An end of a partition is noted, a passing trouble logged, anything else raised."""
        codes = self._kafka.KafkaError
        if error.code() == codes._PARTITION_EOF:
            if self._until is not None and p in self._until and offset >= self._until[p]:
                self._done.add(p)
            return
        if error.code() == codes._AUTO_OFFSET_RESET:
            raise DataError(
                f"data: offset {offset} of partition {p} of topic {self._topic} is not there "
                f"({error.str()}); the broker has deleted it, or the topic is another"
            )
        if error.fatal() or error.code() in (codes.UNKNOWN_TOPIC_OR_PART, codes.TOPIC_AUTHORIZATION_FAILED):
            raise DataError(f"data: topic {self._topic}: {error.str()}; check the topic and the rights on it")
        if error.name() not in self._said:
            self._said.add(error.name())
            logger.warning("topic %s: %s; trying again", self._topic, error.str())

    def _take(self) -> list[Any]:
        """Messages in turn, as far as they are there; none where the next partition is waited for."""
        order = list(self._queues)
        messages: list[Any] = []
        size = passed = 0
        if not order:
            return messages
        at = next((i for i, p in enumerate(order) if p >= self._turn), 0)
        while len(messages) < MOST_MESSAGES and size < MOST_BYTES and passed < len(order):
            p = order[at]
            if self._queues[p]:
                message = self._queues[p].popleft()
                self._bytes[p] -= len(message)
                size += len(message)
                messages.append(message)
                self._quiet.discard(p)
                self._waiting_since = None
                passed = 0
            elif p in self._done or p in self._quiet or (not messages and self._give_up(p)):
                passed += 1
            else:
                break
            at = (at + 1) % len(order)
            self._turn = order[at]
        return messages

    def _give_up(self, p: int) -> bool:
        """Whether a silent partition was waited for long enough while another has messages."""
        if not any(self._queues.values()):
            self._waiting_since = None
            return False
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < self._patience:
            return False
        self._waiting_since = None
        self._quiet.add(p)
        if "quiet" not in self._said:
            self._said.add("quiet")
            logger.warning(
                "partition %d of topic %s has been silent for %g s while others have messages; from here on "
                "the order of rows depends on their arrival (each is still trained on once)",
                p,
                self._topic,
                self._patience,
            )
        return True

    def _run(self, messages: Sequence[Any]) -> Run:
        decoded = self._decoder.decode([message.value() or b"" for message in messages])
        marks = [
            Mark(message.partition(), message.offset(), count, 0)
            for message, count in zip(messages, decoded.counts, strict=True)
        ]
        counts = np.array(decoded.counts)
        sources = np.repeat(np.array([mark.partition for mark in marks], np.int32), counts)
        numbers = np.repeat(np.array([mark.offset for mark in marks], np.int64), counts)
        block = Block(decoded.table, decoded.bad, numbers=numbers, sources=sources)
        if self._used:
            block, marks = self._without_used(block, marks)
        absent = self._kafka.TIMESTAMP_NOT_AVAILABLE
        stamps = [message.timestamp() for message in messages]
        times = np.array([np.nan if kind == absent else at / 1000 for kind, at in stamps])
        left = [mark.rows for mark in marks]
        return Run(block, (marks, sorted(self._quiet)), np.repeat(times, left))

    def _without_used(self, block: Block, marks: list[Mark]) -> tuple[Block, list[Mark]]:
        """Without the rows that were trained on before the run was resumed."""
        parts: list[Block] = []
        kept: list[Mark] = []
        at = 0
        for mark in marks:
            offset, used = self._used.pop(mark.partition, (mark.offset, 0))
            if offset != mark.offset or used > mark.rows:
                raise DataError(
                    f"data: offset {offset} of partition {mark.partition} of topic {self._topic}, of which "
                    f"{used} rows were trained on, is gone or another message; the topic was changed"
                )
            parts.append(block.slice(at + used, at + mark.rows))
            kept.append(Mark(mark.partition, mark.offset, mark.rows - used, used))
            at += mark.rows
        bad, rows = [], 0
        for part in parts:
            bad += [replace(item, row=item.row + rows) for item in part.bad]
            rows += part.table.num_rows
        joined = Block(
            pa.concat_tables([part.table for part in parts]),
            tuple(bad),
            numbers=np.concatenate([part.row_numbers() for part in parts]),
            sources=np.concatenate([part.row_files() for part in parts]),
        )
        return joined, kept
