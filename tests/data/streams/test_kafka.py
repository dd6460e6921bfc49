"""Topics through a real broker's wire, several partitions."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recgrad.errors import ConfigError, DataError, RecgradError

FIELDS = (
    'input_fields_str: "id:BIGINT;label:BIGINT;price:FLOAT;cat:BIGINT;tags:STRING;'
    'clicks:ARRAY<BIGINT>;cost:BIGINT"'
)
DATA = "dataset_type: KafkaDataset num_workers: 2 label_fields: 'label'"


def rows_table(count: int, start: int = 0) -> pa.Table:
    """Rows with a unique `id`."""
    rng = np.random.default_rng(start)
    return pa.table(
        {
            "id": pa.array(np.arange(start, start + count), pa.int64()),
            "label": pa.array(rng.integers(0, 2, count), pa.int64()),
            "price": pa.array(rng.random(count), pa.float32()),
            "cat": pa.array(rng.integers(0, 100, count), pa.int64()),
            "tags": pa.array(["a|b"] * count, pa.string()),
            "clicks": pa.array([[1, 2]] * count, pa.list_(pa.int64())),
            "cost": pa.array(rng.integers(1, 20, count), pa.int64()),
        }
    )


def arrow_message(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue().to_pybytes()


@pytest.fixture(scope="module")
def numbered() -> Callable[[], str]:
    """Names of topics that no other test has."""
    return lambda: f"topic-{uuid4().hex}"


def ids_of(loader: Any, position: Any = None, batches: int | None = None) -> list[list[int]]:
    return [
        table.column("id").to_pylist() for _, table in islice(loader.epoch_with_rows(0, position), batches)
    ]


def in_turn(messages: dict[int, list[list[int]]]) -> list[int]:
    """The reference: one message of each partition after another."""
    rows: list[int] = []
    for number in range(max(map(len, messages.values()))):
        for partition in sorted(messages):
            if number < len(messages[partition]):
                rows += messages[partition][number]
    return rows


def send_rows(
    broker: Any, topic: str, sizes: dict[int, list[int]], encode: Callable[[pa.Table], bytes]
) -> dict:
    sent: dict[int, list[list[int]]] = {}
    start = 0
    for partition, counts in sizes.items():
        sent[partition] = []
        for count in counts:
            table = rows_table(count, start=start)
            broker.send(topic, partition, encode(table))
            sent[partition].append(list(range(start, start + count)))
            start += count
    return sent


def json_lines(table: pa.Table) -> bytes:
    return "\n".join(map(json.dumps, table.to_pylist())).encode()


@pytest.mark.parametrize("form", ["stream", "batch", "json"])
def test_rows_of_partitions_come_in_turn_whatever_the_form(broker, numbered, open_loader, form):
    encode = {
        "stream": arrow_message,
        "batch": lambda table: table.combine_chunks().to_batches()[0].serialize().to_pybytes(),
        "json": json_lines,
    }[form]
    topic = numbered()
    sizes = {0: [3, 8, 1], 1: [5, 5, 5, 5], 2: [40], 3: [2, 2]}
    sent = send_rows(broker, topic, sizes, encode)
    fields = "" if form == "stream" else FIELDS
    loader = open_loader(broker.path(topic), f"{DATA} batch_size: 7 {fields}")
    found = ids_of(loader)
    expected = in_turn(sent)
    assert [len(batch) for batch in found] == [7] * (len(expected) // 7) + [len(expected) % 7]
    assert [row for batch in found for row in batch] == expected


@pytest.fixture(scope="module")
def odd_topic(broker, numbered):
    topic = numbered()
    sizes = {0: [3, 8, 1, 9], 1: [5, 0, 5, 5], 2: [13, 1], 3: [2, 2, 30]}
    return topic, in_turn(send_rows(broker, topic, sizes, arrow_message))


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(batch_size=st.integers(2, 20), stops=st.lists(st.integers(1, 4), max_size=2))
def test_every_row_once_however_often_it_is_resumed(broker, odd_topic, open_loader, batch_size, stops):
    topic, expected = odd_topic
    text = f"{DATA} batch_size: {batch_size}"
    found: list[int] = []
    saved: str | None = None
    for stop in [*stops, None]:
        loader = open_loader(broker.path(topic), text)
        position = None if saved is None else loader.position_from(saved)
        found += [row for batch in ids_of(loader, position, stop) for row in batch]
        saved = loader.join_positions([loader.position.to_json()])
    # One row alone waits for others.
    assert found == expected or (found == expected[:-1] and len(expected) % batch_size == 1)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_ranks_share_partitions_and_their_number_may_change(broker, odd_topic, open_loader, before, after):
    topic, expected = odd_topic
    text = f"{DATA} batch_size: 4"
    first = [open_loader(broker.path(topic), text, rank=rank, world_size=before) for rank in range(before)]
    found = [row for loader in first for batch in ids_of(loader, None, 2) for row in batch]
    saved = first[0].join_positions([loader.position.to_json() for loader in first])
    for rank in range(after):
        loader = open_loader(broker.path(topic), text, rank=rank, world_size=after)
        found += [row for batch in ids_of(loader, loader.position_from(saved)) for row in batch]
    missing = set(expected) - set(found)
    assert len(found) == len(set(found))
    assert len(missing) <= after  # at most one row of each rank waits for others


def test_bad_messages_are_told_with_their_place_or_left_out(broker, numbered, open_loader, caplog):
    topic = numbered()
    good = rows_table(4)
    broker.send(topic, 0, json_lines(good.slice(0, 2)), b'{"id": 1, "label": "no', json_lines(good.slice(2)))
    path = broker.path(topic)
    with pytest.raises(
        DataError, match=f"message: .* is not JSON .*offset 1 of partition 0 of topic {topic}"
    ):
        ids_of(open_loader(path, f"{DATA} batch_size: 3 {FIELDS}"))
    skipping = f"{DATA} batch_size: 3 {FIELDS} on_bad_row: SKIP max_bad_row_ratio: 0.5"
    assert [row for batch in ids_of(open_loader(path, skipping)) for row in batch] == [0, 1, 2, 3]
    assert f"offset 1 of partition 0 of topic {topic}" in caplog.text


def test_a_message_of_other_columns_is_bad(broker, numbered, open_loader):
    topic = numbered()
    table = rows_table(3)
    broker.send(topic, 1, arrow_message(table.drop(["cat"])), arrow_message(table))
    with pytest.raises(DataError, match=r"has no column 'cat'.*offset 0 of partition 1"):
        ids_of(open_loader(broker.path(topic), f"{DATA} batch_size: 2"))


def test_bad_values_of_good_messages_have_their_place(broker, numbered, open_loader):
    topic = numbered()
    table = rows_table(3)
    high = table.set_column(table.schema.get_field_index("cat"), "cat", pa.array([1, 2, 991], pa.int64()))
    broker.send(topic, 2, arrow_message(table), arrow_message(high))
    with pytest.raises(DataError, match=rf"id 991 .*offset 1 of partition 2 of topic {topic}"):
        ids_of(open_loader(broker.path(topic), f"{DATA} batch_size: 2"))


def test_an_offset_that_the_broker_deleted_is_an_error(broker, numbered, open_loader):
    topic = numbered()
    broker.send(topic, 0, arrow_message(rows_table(6)))
    loader = open_loader(broker.path(topic), f"{DATA} batch_size: 2")
    ids_of(loader, None, 1)
    saved = json.loads(loader.position.to_json())
    saved["at"]["partitions"]["0"] = [77, 0]
    with pytest.raises(DataError, match=r"offset 77, and the broker keeps 0 to 1"):
        ids_of(loader, loader.position_from(json.dumps(saved)))


def test_event_times_and_lag(broker, numbered, open_loader):
    topic = numbered()
    broker.send(topic, 0, arrow_message(rows_table(4)), time_ms=1_700_000_001_500)
    broker.send(topic, 1, arrow_message(rows_table(4, start=4)), time_ms=1_700_000_009_000)
    loader = open_loader(broker.path(topic), f"{DATA} batch_size: 4")
    times = []
    for _ in loader.epoch():
        times.append(loader.event_time)
        assert loader.lag is not None
    assert times[-1] == 1_700_000_009.0
    own = open_loader(broker.path(topic), f"{DATA} batch_size: 8 timestamp_field: 'cost'")
    next(batches := own.epoch())
    assert own.event_time == max(
        max(rows_table(4, start=start).column("cost").to_pylist()) for start in (0, 4)
    )
    batches.close()


def test_a_silent_partition_is_passed_over_after_a_while(broker, numbered, open_loader, caplog):
    topic = numbered()
    for start in (0, 2, 4, 6):
        broker.send(topic, 1, arrow_message(rows_table(2, start=start)))
    text = f"{DATA} batch_size: 2 stream {{ partition_wait_secs: 0.1 idle_secs: 1 }}"
    found = ids_of(open_loader(broker.path(topic), text, endless=True))
    assert found == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert "silent" in caplog.text


def test_a_rank_without_partitions_of_its_own_gives_batches_of_no_rows(broker, numbered, open_loader):
    topic = numbered()
    broker.send(topic, 0, arrow_message(rows_table(4)))
    text = f"{DATA} batch_size: 2 stream {{ rank_wait_secs: 0.05 }}"
    loader = open_loader(broker.path(topic), text, rank=1, world_size=2, endless=True)
    batches = loader.epoch()
    assert [next(batches).size for _ in range(3)] == [0, 0, 0]
    batches.close()


@pytest.mark.parametrize(
    ("path", "text", "error", "message"),
    [
        ("kafka://host:1", DATA, DataError, "is no path of a topic; write kafka://"),
        ("kafka://{servers}/none?group.id=g", DATA, DataError, "topic none: .*Unknown topic"),
        ("kafka://{servers}/t?no.such.setting=1", DATA, DataError, "no.such.setting"),
        (
            "kafka://{servers}/t?auto.offset.reset=never",
            DATA,
            DataError,
            "must be earliest or latest, got 'never'",
        ),
        ("kafka://{servers}/t?enable.auto.commit=true", DATA, DataError, "positions are kept in checkpoints"),
        ("kafka://{servers}/t", f"{DATA} shuffle: true", ConfigError, "in the order in which they come"),
        (
            "kafka://{servers}/t",
            f"{DATA} stream {{ idle_secs: -1 }}",
            ConfigError,
            "must be 0 or more seconds",
        ),
    ],
)
def test_what_cannot_be_read_is_said(broker, open_loader, path, text, error, message):
    with pytest.raises(error, match=message):
        open_loader(path.replace("{servers}", broker.servers), f"{text} batch_size: 2")


def test_json_without_types_is_refused(broker, numbered, open_loader):
    topic = numbered()
    broker.send(topic, 0, b'{"id": 1}')
    with pytest.raises(DataError, match=r"name the columns with their types in data_config\.input_fields"):
        open_loader(broker.path(topic), f"{DATA} batch_size: 2")


def test_the_extra_is_named_where_it_is_missing(monkeypatch, open_loader):
    monkeypatch.setitem(__import__("sys").modules, "confluent_kafka", None)
    with pytest.raises(RecgradError, match=r"pip install 'recgrad\[kafka\]'"):
        open_loader("kafka://h:1/t", f"{DATA} batch_size: 2")


def test_messages_from_a_time_on(broker, numbered, open_loader, monkeypatch):
    """The brokers here cannot look up times, so the client's answer stands in for theirs."""
    import confluent_kafka

    topic = numbered()
    broker.send(topic, 0, *(arrow_message(rows_table(2, start=start)) for start in (0, 2, 4)))

    class Consumer(confluent_kafka.Consumer):
        def offsets_for_times(self, places, timeout=0):
            assert {place.offset for place in places} == {1234}
            return [
                confluent_kafka.TopicPartition(p.topic, p.partition, -1 if p.partition else 2) for p in places
            ]

    monkeypatch.setattr(confluent_kafka, "Consumer", Consumer)
    path = broker.path(topic) + "start.timestamp.ms=1234"
    assert ids_of(open_loader(path, f"{DATA} batch_size: 2")) == [[4, 5]]
