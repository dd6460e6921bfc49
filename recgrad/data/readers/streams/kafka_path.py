"""Input paths of topics: `kafka://host:port[,host:port]/topic?setting=value&…`."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from recgrad.errors import DataError

PREFIX = "kafka://"
FORM = "kafka://host:port[,host:port]/topic?group.id=…"
_DEFAULTS = {"group.id": "recgrad", "queued.max.messages.kbytes": "16384"}
_FORCED = {
    # Positions come from the checkpoint alone.
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
}
RESETS = {
    "earliest": "earliest",
    "smallest": "earliest",
    "beginning": "earliest",
    "latest": "latest",
    "largest": "latest",
    "end": "latest",
}


@dataclass(frozen=True)
class KafkaPath:
    """A topic and how to reach it.

    Attributes:
        topic: its name.
        client: settings of the consumer.
        start_ms: begin with the first message of this time; None begins as `reset` says.
        reset: earliest or latest.
    """

    topic: str
    client: dict[str, str] = field(repr=False)
    start_ms: int | None = None
    reset: str = "earliest"


def parse_kafka_path(path: str) -> KafkaPath:
    """The parts of an input path; what is not ours goes to the client as it is."""
    address, _, query = path.removeprefix(PREFIX).partition("?")
    servers, _, topic = address.partition("/")
    topic = topic.strip("/")
    if not path.startswith(PREFIX) or not servers or not topic or "/" in topic:
        raise DataError(f"data: '{path.partition('?')[0]}' is no path of a topic; write {FORM}")
    settings = dict(parse_qsl(query, keep_blank_values=True))
    start = settings.pop("start.timestamp.ms", None)
    if start is not None and not start.isdigit():
        raise DataError(f"data: start.timestamp.ms of topic {topic} must be a whole number, got '{start}'")
    reset = settings.pop("auto.offset.reset", "earliest")
    if reset not in RESETS:
        raise DataError(f"data: auto.offset.reset of topic {topic} must be earliest or latest, got '{reset}'")
    if settings.pop("enable.auto.commit", "false").lower() != "false":
        raise DataError(
            f"data: enable.auto.commit of topic {topic} must be false: positions are kept in checkpoints"
        )
    client = {**_DEFAULTS, **settings, **_FORCED, "bootstrap.servers": servers}
    return KafkaPath(topic, client, None if start is None else int(start), RESETS[reset])
