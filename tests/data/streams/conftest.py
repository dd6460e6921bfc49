"""Brokers on the loopback: librdkafka's own, four partitions a topic."""

from __future__ import annotations

import pytest


class Broker:
    def __init__(self) -> None:
        from confluent_kafka import Producer

        self.producer = Producer({"bootstrap.servers": "x:1", "test.mock.num.brokers": 1, "linger.ms": 2})
        brokers = self.producer.list_topics(timeout=20).brokers.values()
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def path(self, topic: str, **settings: str) -> str:
        query = "&".join(f"{name.replace('_', '.')}={value}" for name, value in settings.items())
        return f"kafka://{self.servers}/{topic}?group.id=g&fetch.wait.max.ms=10&{query}"

    def send(self, topic: str, partition: int, *values: bytes, time_ms: int = 1_700_000_000_000) -> None:
        for value in values:
            self.producer.produce(topic, value, partition=partition, timestamp=time_ms)
        assert self.producer.flush(20) == 0


@pytest.fixture(scope="session")
def broker() -> Broker:
    pytest.importorskip("confluent_kafka")
    return Broker()
