"""A model of a few columns whose scores are a formula, and a server of it in this process."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.data.faults import Faults
from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.serving.app import MAX_CONNECTIONS, Application
from recgrad.serving.holder import ModelHolder
from recgrad.serving.metrics import Metrics
from recgrad.serving.part import BadRowsError
from recgrad.serving.routes import ROUTES
from recgrad.serving.scorer import Scorer
from recgrad.serving.service import Service
from recgrad.serving.settings import ServerSettings

SCHEMA = pa.schema(
    [
        ("user_id", pa.int64()),
        ("item_id", pa.int64()),
        ("price", pa.float64()),
        ("city", pa.string()),
        ("tags", pa.list_(pa.string())),
    ]
)
GOLDEN = {"user_id": 1, "item_id": 2, "price": 3.5, "city": "Oslo", "tags": ["a", "b"]}


def formula(row: Mapping[str, Any], shift: float = 0.0) -> float:
    """The score of a row; missing values count as 0."""
    logit = 0.01 * (row["user_id"] or 0) - 0.02 * (row["item_id"] or 0) + 0.1 * (row["price"] or 0)
    logit += 0.05 * len(row["city"] or "") + 0.2 * len(row["tags"] or ()) + shift
    return float(1 / (1 + np.exp(-logit)))


class FakeScorer(Scorer):
    """Scores by `formula`; a negative price is a bad row, a price of 666 breaks it."""

    def __init__(self, shift: float = 0.0, delay_s: float = 0.0) -> None:
        self.shift = shift
        self.delay_s = delay_s
        self.path = Path("fake")
        self.manifest = {"shift": shift, "metrics": {"auc": 0.75}}
        self.schema = SCHEMA
        self.features = tuple(
            FeatureSpec(name=name, kind=Kind.DENSE if name == "price" else Kind.SPARSE, num_rows=100)
            for name in SCHEMA.names
        )
        self.outputs = ("probs",)
        self.tasks = ("",)
        self.towers = ()
        self.golden = pa.Table.from_pylist([GOLDEN], SCHEMA)
        self.calls: list[int] = []

    def score(self, rows: Any) -> dict[str, Any]:
        rows = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        assert rows.schema.names == SCHEMA.names, rows.schema
        assert [field.type for field in rows.schema] == [field.type for field in SCHEMA]
        self.calls.append(rows.num_rows)
        if self.delay_s:
            time.sleep(self.delay_s)
        faults = Faults()
        price = rows.column("price").combine_chunks()
        negative = np.flatnonzero(np.asarray(pc.less(price, 0).fill_null(False)))
        faults.add(
            negative,
            column="price",
            feature="price",
            reason="price {value} is negative",
            values=price.take(pa.array(negative)),
            remedy="send a price of at least 0",
        )
        if faults:
            raise BadRowsError(faults)
        if pc.any(pc.equal(price, 666)).as_py():
            raise ZeroDivisionError("broken")
        scores = [formula(row, self.shift) for row in rows.to_pylist()]
        return {"probs": np.array(scores, np.float32)}

    def score_candidates(self, user: Any, items: Any) -> dict[str, Any]:
        assert user.num_rows == 1
        assert not set(user.schema.names) & set(items.schema.names)
        rows = [{**user.to_pylist()[0], **item} for item in items.to_pylist()]
        return self.score(pa.Table.from_pylist(rows, SCHEMA))

    def explain(self, rows: Any) -> dict[str, Any]:
        whole = self.score(rows)["probs"]
        moved = {}
        for at, name in enumerate(SCHEMA.names):
            without = rows.set_column(at, name, pa.nulls(rows.num_rows, SCHEMA.field(name).type))
            moved[name] = whole - self.score(without)["probs"]
        return {"probs": moved}


class Client:
    """One connection to a server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """The status and the body: decoded if it is JSON, text or bytes otherwise."""
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        self.connection.request(method, path, data, dict(headers or {}))
        answer = self.connection.getresponse()
        content = answer.read()
        kind = answer.getheader("content-type") or ""
        if content and "json" in kind:
            return answer.status, json.loads(content)
        return answer.status, content.decode() if kind.startswith("text") else content

    def score(self, body: Any, **headers: str) -> tuple[int, Any]:
        return self.ask("POST", "/v1/score", body, headers)

    def close(self) -> None:
        self.connection.close()


class Running:
    """A server that runs in a thread of this process."""

    def __init__(self, service: Service, app: Application, port: int) -> None:
        self.service = service
        self.app = app
        self.port = port

    def client(self) -> Client:
        return Client(self.port)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(holder: ModelHolder, **limits: Any) -> Iterator[Running]:
    """Serve a holder's model; `max_connections` beside the limits of the settings."""
    from recgrad.serving.listening import listen, run

    most = limits.pop("max_connections", MAX_CONNECTIONS)
    settings = ServerSettings(bundle="fake", port=free_port(), **limits)
    ready: list[Running] = []
    stop: list[Any] = []
    started = threading.Event()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        metrics = Metrics(None, sorted({name.partition(" ")[2] for name in ROUTES}))
        service = Service(settings, holder, metrics, loop)
        app = Application(service, most)
        service.start()
        ending = asyncio.Event()
        server = await listen(app, settings.host, settings.port)
        ready.append(Running(service, app, settings.port))
        stop.append(lambda: loop.call_soon_threadsafe(ending.set))
        started.set()
        await ending.wait()
        server.close()
        service.stop()

    thread = threading.Thread(target=lambda: run(serve()), daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield ready[0]
    finally:
        stop[0]()
        thread.join(20)


def fake_holder(scorer: Scorer | None = None, **settings: Any) -> ModelHolder:
    made = scorer or FakeScorer()
    return ModelHolder("fake", load=lambda path: made, **settings)
