"""Brokers in a process of their own: prints their address, fills topics as stdin asks."""

from __future__ import annotations

import base64
import json
import sys

from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": "x:1", "test.mock.num.brokers": 1, "linger.ms": 2})
brokers = producer.list_topics(timeout=20).brokers.values()
print(",".join(f"{broker.host}:{broker.port}" for broker in brokers), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    for partition, value, time_ms in asked["messages"]:
        producer.produce(asked["topic"], base64.b64decode(value), partition=partition, timestamp=time_ms)
    print(producer.flush(20), flush=True)
