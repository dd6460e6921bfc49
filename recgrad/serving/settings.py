"""What a server is told: where it listens, what it serves, and its limits."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Annotated

from recgrad.limits import Range, keep_limits

Positive = Annotated[float, Range("(0, ∞)")]
Count = Annotated[int, Range("[1, ∞)")]
MEGABYTE = 1 << 20


@dataclass(frozen=True)
class StoreSettings:
    """A file of stored features.

    Attributes:
        path: a parquet or Arrow file.
        key: the column of ids.
    """

    path: str
    key: str


@keep_limits
@dataclass(frozen=True)
class ServerSettings:
    """All settings of a server.

    Attributes:
        bundle: the folder of the model.
        index: an index of its items, for recommending: a folder, or postgresql://…; "" for none.
        index_table: its table in PostgreSQL; "" for the usual one.
        follow: a folder of deltas of the bundle's run; "" for none.
        host: the address that is listened at.
        port: its port; 0 for any that is free.
        workers: processes; each scores on one thread.
        stores: stored features by role: "user", "item".
        max_body_mb: the largest body of a request.
        max_rows: the most rows of a request.
        max_queue: requests that wait in one worker; more are answered 429.
        max_queue_mb: bytes of bodies that one worker holds; more are answered 429.
        max_wait_ms: how long a request waits at most for others that are arriving, to be scored with them.
        batch_rows: rows that are scored together, unless a single request has more.
        timeout_s: from the first byte of a request to its scores; a later answer is 504.
        body_timeout_s: for a body to arrive; a later one is answered 408.
        drain_s: how long requests in flight may take after SIGTERM.
        poll_s: how often files are looked at for being replaced.
    """

    bundle: str
    index: str = ""
    index_table: str = ""
    follow: str = ""
    host: str = "127.0.0.1"
    port: Annotated[int, Range("[0, 65535]")] = 8000
    workers: Annotated[int, Range("[1, 1024]")] = 1
    stores: dict[str, StoreSettings] = field(default_factory=dict)
    max_body_mb: Positive = 8.0
    max_rows: Count = 10_000
    max_queue: Count = 1024
    max_queue_mb: Positive = 64.0
    max_wait_ms: Annotated[float, Range("[0, 1000]")] = 1.0
    batch_rows: Count = 2048
    timeout_s: Positive = 10.0
    body_timeout_s: Positive = 10.0
    drain_s: Annotated[float, Range("[0, ∞)")] = 30.0
    poll_s: Positive = 1.0

    @property
    def max_body_bytes(self) -> int:
        """The largest body of a request."""
        return int(self.max_body_mb * MEGABYTE)

    @property
    def max_queue_bytes(self) -> int:
        """Bytes of bodies that one worker holds; never less than one body."""
        return max(int(self.max_queue_mb * MEGABYTE), self.max_body_bytes)

    def to_json(self) -> str:
        """The settings as text, for a worker."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> ServerSettings:
        """The settings that `to_json` wrote."""
        values = json.loads(text)
        stores = {role: StoreSettings(**store) for role, store in values.pop("stores").items()}
        return ServerSettings(stores=stores, **values)
