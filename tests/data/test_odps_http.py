"""The MaxCompute reader through pyodps' own HTTP: signed requests, sessions, Arrow streams."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import text_format

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.readers.odps import OdpsReader
from recgrad.errors import DataError

ROWS = 150_000  # more than two fragments
TABLE = pa.table(
    {
        "id": pa.array(np.arange(ROWS), pa.int64()),
        "name": pa.array([f"n{i % 10}" for i in range(ROWS)]),
        "price": pa.array(np.arange(ROWS) / 8, pa.float64()),
    }
)
SCHEMA = {
    "columns": [
        {"name": "id", "type": "bigint", "comment": "", "label": ""},
        {"name": "name", "type": "string", "comment": "", "label": ""},
        {"name": "price", "type": "double", "comment": "", "label": ""},
    ],
    "partitionKeys": [],
}
DESCRIPTION = f"""<?xml version="1.0" encoding="UTF-8"?>
<Table><Name>clicks</Name><Project>shop</Project>
<LastModifiedTime>Thu, 01 Jan 2026 00:00:00 GMT</LastModifiedTime>
<Schema format="Json"><![CDATA[{json.dumps(SCHEMA)}]]></Schema></Table>"""
CODECS = {"LZ4_FRAME": "lz4", "ZSTD": "zstd"}


class Service(ThreadingHTTPServer):
    """The endpoint and the tunnel of a project with one table."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.sessions: list[list[str]] = []
        self.cut_after: int | None = None
        self.missing = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Service
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, query = urlparse(self.path).path, parse_qs(urlparse(self.path).query)
        self.server.asked.append(self.path)
        assert self.headers["Authorization"].startswith("ODPS key:")
        if path.endswith("/tenants"):
            self.answer(b'{"Tenant": {"Name": "own", "Parameters": {"odps.namespace.schema": "false"}}}')
        elif path.endswith(("/host", "/tunnel")):
            self.answer(self.server.address.encode())
        elif path.endswith("/data"):
            self.answer(self.rows(query))
        elif "/sessions/" in path:
            self.answer(self.session(int(path.rpartition("/")[2])))
        elif self.server.missing:
            text = "<Error><Code>NoSuchObject</Code><Message>no table clicks</Message></Error>"
            self.answer(text.encode(), status=404)
        else:
            self.answer(DESCRIPTION.encode(), kind="application/xml")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.sessions.append(asked["RequiredDataColumns"] or TABLE.column_names)
        self.answer(self.session(len(self.server.sessions) - 1, "INIT"), status=202)

    def session(self, number: int, status: str = "NORMAL") -> bytes:
        found = {"SessionId": str(number), "SessionStatus": status, "RecordCount": ROWS, "SplitsCount": 0}
        return json.dumps(found | {"SessionType": "batch_read", "ExpirationTime": 1 << 41}).encode()

    def rows(self, query: dict[str, list[str]]) -> bytes:
        columns = self.server.sessions[int(query["session_id"][0])]
        start, count = int(query["row_index"][0]), int(query["row_count"][0])
        table = TABLE.select(columns).slice(start, count)
        codec = CODECS.get(self.headers.get("Accept-Encoding", ""))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(
            sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)
        ) as writer:
            writer.write_table(table, max_chunksize=int(query["max_batch_rows"][0]))
        value = bytes(sink.getvalue().to_pybytes())
        if self.server.cut_after is not None:
            value, self.server.cut_after = value[: self.server.cut_after], None
        return value

    def answer(self, body: bytes, *, status: int = 200, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("x-odps-request-id", "r")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def service(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    pytest.importorskip("odps")
    own = Service()
    thread = threading.Thread(target=own.serve_forever, daemon=True)
    thread.start()
    settings = tmp_path / "odps.conf"
    settings.write_text(f"access_id=key\naccess_key=secret\nend_point=http://{own.address}/api\n")
    monkeypatch.setenv("ODPS_CONFIG_FILE_PATH", str(settings))
    yield own
    own.shutdown()
    own.server_close()


def opened(text: str = "") -> OdpsReader:
    data = text_format.Parse(f"dataset_type: OdpsDataset {text}", DataConfig())
    return OdpsReader("odps://shop/tables/clicks", data)


def all_rows(reader: OdpsReader, columns: list[str]) -> pa.Table:
    blocks = [block.table for part in reader.fragments for block in reader.read(part, columns)]
    return pa.concat_tables(blocks)


@pytest.mark.parametrize("compression", ["LZ4_FRAME", "ZSTD", "UNCOMPRESSED"])
def test_rows_and_columns_through_the_wire(service: Service, compression: str) -> None:
    reader = opened(f'odps_data_compression: "{compression}" odps_data_quota_name: "mine"')
    assert reader.num_rows == ROWS
    assert reader.schema.names == ["id", "name", "price"]
    found = all_rows(reader, ["price", "id"])
    assert found.combine_chunks().equals(TABLE.select(["price", "id"]).combine_chunks())
    assert all("quotaName=mine" in line for line in service.asked if "/data" in line)


def test_a_connection_that_breaks_off_is_asked_again_from_there(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recgrad.data.readers.odps.time.sleep", lambda secs: None)
    reader = opened()
    service.cut_after = 100_000
    assert all_rows(reader, ["id"]).column("id").to_pylist() == list(range(ROWS))


def test_a_table_that_is_not_there_is_said(service: Service) -> None:
    service.missing = True
    with pytest.raises(DataError, match="clicks"):
        opened()


def test_a_loader_reads_through_the_wire(service: Service, open_loader: Callable[..., Any]) -> None:
    features = 'feature_configs { raw_feature { feature_name: "price" expression: "item:price" } }'
    loader = open_loader(
        "odps://shop/tables/clicks",
        "dataset_type: OdpsDataset batch_size: 50000 num_workers: 2",
        features=features,
        targets=None,
    )
    found = [row for _, table in loader.epoch_with_rows() for row in table.column("id").to_pylist()]
    assert found == list(range(ROWS))
