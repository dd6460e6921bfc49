"""Topics of Kafka.

Partition p belongs to rank p mod ranks, by `assign`: nothing moves while a run lasts, and positions, which
are per partition, are dealt again when it is resumed with another number of ranks. Messages of a rank's
partitions are taken in turn, one of each, so that the order of rows does not depend on when they arrived; a
partition that stays silent is waited for for a while, then passed over.

A state is {"partitions": {p: [offset of the next message, rows used of it]}, "next": p, "quiet": [p]}.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from recgrad.config.proto.data_pb2 import DataConfig, StreamConfig
from recgrad.data.readers.fields import field_types
from recgrad.data.readers.reader import PARTITION
from recgrad.data.readers.streams.kafka_flow import KafkaFlow
from recgrad.data.readers.streams.kafka_path import parse_kafka_path
from recgrad.data.readers.streams.messages import Decoder, read_arrow
from recgrad.data.readers.streams.source import Source, State
from recgrad.errors import DataError, RecgradError

CALL_SECS = 15.0
logger = logging.getLogger("recgrad.data")


class KafkaSource(Source):
    """A topic.

    Args:
        path: of the topic.
        data: types of columns and how to read.
        rank, ranks: which share of the partitions.
        bounded: end where the partitions end at the time of opening.
    """

    kind = "kafka"

    def __init__(self, path: str, data: DataConfig, *, rank: int, ranks: int, bounded: bool) -> None:
        self.path = parse_kafka_path(path)
        self.name = self.path.topic
        self._kafka = _import_kafka()
        self._settings = data.stream
        self._rank, self._ranks = rank, ranks
        self._bounded = bounded
        consumer = self._consumer()
        try:
            self.partitions = self._find_partitions(consumer)
            self.files = tuple(
                f"{PARTITION}{p} of topic {self.name}" for p in range(max(self.partitions) + 1)
            )
            self._declared = _declared_schema(data)
            self.schema = self._declared or self._look(consumer, wait=not bounded)
            self._begin = self._start_offsets(consumer)
        finally:
            consumer.close()
        if rank == 0 and ranks > len(self.partitions):
            logger.warning(
                "topic %s has %d partitions for %d ranks: some ranks have nothing to train on",
                self.name,
                len(self.partitions),
                ranks,
            )

    @property
    def own(self) -> list[int]:
        """This rank's partitions."""
        return [p for p in self.partitions if p % self._ranks == self._rank]

    def start(self) -> State:
        """The first offsets of this rank's partitions, as the path says."""
        return self._state({p: [self._begin[p], 0] for p in self.own})

    def resume(self, states: Sequence[State]) -> State:
        """Positions of this rank's partitions; with as many ranks as before, their turn too."""
        found = {int(p): list(at) for state in states for p, at in state["partitions"].items()}
        for p in sorted(set(self.partitions) - set(found)):
            logger.info("topic %s has a new partition %d; it is read from its beginning", self.name, p)
        gone = sorted(set(found) - set(self.partitions))
        if gone:
            raise DataError(
                f"data: partition {gone[0]} of topic {self.name} was read before and is not there now; the "
                "topic is another"
            )
        state = self._state({p: found.get(p, [self._begin[p], 0]) for p in self.own})
        if len(states) == self._ranks:
            own = states[self._rank]
            state |= {"next": own["next"], "quiet": own["quiet"]}
        return state

    def open(self, state: State, columns: Sequence[str]) -> KafkaFlow:
        """A consumer that stands at the state's offsets."""
        decoder = Decoder(self.schema, columns, StreamConfig.Format.Name(self._settings.format))
        consumer = self._consumer()
        try:
            ends = self._check_offsets(consumer, state)
        except BaseException:
            consumer.close()
            raise
        return KafkaFlow(
            self._kafka,
            consumer,
            self.name,
            state,
            decoder,
            ends=ends,
            bounded=self._bounded,
            patience=self._settings.partition_wait_secs,
        )

    def _state(self, partitions: Mapping[int, list[int]]) -> State:
        first = min(partitions, default=0)
        return {"partitions": {str(p): at for p, at in partitions.items()}, "next": first, "quiet": []}

    def _consumer(self) -> Any:
        kafka = self._kafka
        try:
            return kafka.Consumer({**self.path.client, "logger": logging.getLogger("recgrad.kafka")})
        except (kafka.KafkaException, TypeError, ValueError) as error:
            raise DataError(
                f"data: topic {self.name}: {_reason(error)}; correct the settings in the input path"
            ) from error

    def _find_partitions(self, consumer: Any) -> list[int]:
        try:
            topic = consumer.list_topics(self.name, timeout=CALL_SECS).topics[self.name]
        except self._kafka.KafkaException as error:
            servers = self.path.client["bootstrap.servers"]
            raise DataError(
                f"data: no broker of {servers} answers ({_reason(error)}); check the input path"
            ) from error
        if topic.error is not None or not topic.partitions:
            why = topic.error.str() if topic.error is not None else "no partitions"
            raise DataError(f"data: topic {self.name}: {why}; check its name and the rights on it")
        return sorted(topic.partitions)

    def _bounds(self, consumer: Any, partition: int) -> tuple[int, int]:
        """The first offset that is kept, and the one that the next message will get."""
        place = self._kafka.TopicPartition(self.name, partition)
        try:
            found = consumer.get_watermark_offsets(place, timeout=CALL_SECS)
        except self._kafka.KafkaException as error:
            raise DataError(
                f"data: partition {partition} of topic {self.name}: {_reason(error)}; check the brokers"
            ) from error
        if found is None:
            raise DataError(f"data: partition {partition} of topic {self.name}: no broker answers in time")
        return found[0], found[1]

    def _start_offsets(self, consumer: Any) -> dict[int, int]:
        bounds = {p: self._bounds(consumer, p) for p in self.partitions}
        at = 0 if self.path.reset == "earliest" else 1
        begin = {p: both[at] for p, both in bounds.items()}
        if self.path.start_ms is None:
            return begin
        kafka = self._kafka
        asked = [kafka.TopicPartition(self.name, p, self.path.start_ms) for p in self.partitions]
        for place in consumer.offsets_for_times(asked, timeout=CALL_SECS):
            if place.offset >= 0:
                begin[place.partition] = place.offset
            else:
                logger.warning(
                    "partition %d of topic %s has no message from start.timestamp.ms %d on; "
                    "it is read from the %s",
                    place.partition,
                    self.name,
                    self.path.start_ms,
                    self.path.reset,
                )
        return begin

    def _check_offsets(self, consumer: Any, state: State) -> dict[int, int]:
        """Where partitions end now; raises where a saved offset is no longer there."""
        ends = {}
        for key, (offset, _) in state["partitions"].items():
            low, high = self._bounds(consumer, int(key))
            if not low <= offset <= high:
                why = (
                    "has deleted those before" if offset < low else "has no such offset: the topic is another"
                )
                raise DataError(
                    f"data: partition {key} of topic {self.name} is to be read from offset {offset}, and the "
                    f"broker keeps {low} to {high} ({why}); begin a run in a new model_dir with "
                    "--fine_tune_checkpoint to train on what is left"
                )
            ends[int(key)] = high
        return ends

    def _look(self, consumer: Any, *, wait: bool) -> pa.Schema:
        """The schema of the newest message of any partition."""
        said = False
        while True:
            for p in self.partitions:
                low, high = self._bounds(consumer, p)
                value = self._read_one(consumer, p, high - 1) if high > low else None
                if value is not None:
                    return self._schema_of(value, p, high - 1)
            if not wait:
                raise DataError(f"data: topic {self.name} has no messages; check its name")
            if not said:
                logger.info("topic %s has no messages yet; waiting for the first", self.name)
                said = True
            time.sleep(0.5)

    def _schema_of(self, value: bytes, partition: int, offset: int) -> pa.Schema:
        where = f"offset {offset} of partition {partition} of topic {self.name}"
        if value[:1] != b"\xff":
            raise DataError(
                f"data: {where} is no Arrow data, so nothing says the types of its columns; name the columns "
                "with their types in data_config.input_fields"
            )
        try:
            return read_arrow(value, None).schema
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"data: {where} cannot be read ({error}); name the columns in input_fields"
            ) from error

    def _read_one(self, consumer: Any, partition: int, offset: int) -> bytes | None:
        consumer.assign([self._kafka.TopicPartition(self.name, partition, offset)])
        until = time.monotonic() + CALL_SECS
        while time.monotonic() < until:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                value: bytes = message.value() or b""
                return value
            if message is not None and message.error().code() == self._kafka.KafkaError._PARTITION_EOF:
                return None
        return None


def _declared_schema(data: DataConfig) -> pa.Schema | None:
    types = field_types(data)
    if not types or None in types.values():
        return None
    return pa.schema(list(types.items()))


def _reason(error: Any) -> str:
    inner = error.args[0] if error.args else error
    return str(inner.str()) if hasattr(inner, "str") else str(inner)


def _import_kafka() -> Any:
    try:
        import confluent_kafka
    except ImportError as error:
        raise RecgradError(
            f"data: reading topics needs confluent-kafka ({error}); install it with "
            "pip install 'recgrad[kafka]'"
        ) from error
    return confluent_kafka
