"""The MaxCompute reader against pyodps' own requests, responses and Arrow reader, without a network."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest
from google.protobuf import text_format

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.readers import odps as reader_module
from recgrad.data.readers.odps import OdpsReader, TableAddress, parse_addresses
from recgrad.errors import ConfigError, DataError, RecgradError


def config(text: str = "") -> DataConfig:
    return text_format.Parse(f"dataset_type: OdpsDataset {text}", DataConfig())


class Service:
    """A storage service in memory: real request objects in, real responses and Arrow streams out."""

    def __init__(self, tables: dict[str, pa.Table], fail_reads: int = 0) -> None:
        self.tables = tables
        self.fail_reads = fail_reads
        self.requests: list[dict] = []

    def open_table(self, address: TableAddress, quota: str) -> tuple[object, object]:
        from odps.tunnel.io.types import arrow_schema_to_odps_schema

        data = self.tables[str(address)]
        schema = arrow_schema_to_odps_schema(data.schema)
        partition = SimpleNamespace(last_data_modified_time="2026-01-01")
        table = SimpleNamespace(
            table_schema=schema, last_data_modified_time="2026-01-02", get_partition=lambda name: partition
        )
        return table, Client(self, str(address), quota)


def response(kind: type, values: dict) -> object:
    """What pyodps makes of the service's JSON."""
    made = kind()
    made.parse(json.dumps(values), obj=made)
    return made


class Client:
    def __init__(self, service: Service, address: str, quota: str) -> None:
        self.service, self.address, self.quota = service, address, quota
        self.columns: dict[str, list[str]] = {}

    def create_read_session(self, request):
        from odps.apis.storage_api import TableBatchScanRequest, TableBatchScanResponse

        assert isinstance(request, TableBatchScanRequest)
        sent = json.loads(request.serialize())
        self.service.requests.append(sent)
        name = f"session-{len(self.service.requests)}"
        self.columns[name] = sent["RequiredDataColumns"]
        return response(TableBatchScanResponse, {"SessionId": name, "SessionStatus": "INIT"})

    def get_read_session(self, request):
        from odps.apis.storage_api import SessionRequest, TableBatchScanResponse

        assert isinstance(request, SessionRequest)
        count = self.service.tables[self.address].num_rows
        values = {"SessionId": request.session_id, "SessionStatus": "NORMAL", "RecordCount": count}
        return response(TableBatchScanResponse, values)

    def read_rows_arrow(self, request):
        from odps.apis.storage_api import ArrowReader, ReadRowsRequest

        assert isinstance(request, ReadRowsRequest)
        table = self.service.tables[self.address]
        table = table.select(self.columns[request.session_id] or table.column_names)
        table = table.slice(request.row_index, request.row_count)
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            batches = table.to_batches(max_chunksize=request.max_batch_rows)
            if self.service.fail_reads:
                self.service.fail_reads -= 1
                batches = batches[: len(batches) // 2]
            for batch in batches:
                writer.write_batch(batch)
        return ArrowReader(io.BytesIO(sink.getvalue()))


@pytest.fixture
def service(monkeypatch):
    pytest.importorskip("odps")
    monkeypatch.setattr(reader_module.time, "sleep", lambda seconds: None)

    def start(tables: dict[str, pa.Table], **kwargs: int) -> Service:
        made = Service(tables, **kwargs)
        monkeypatch.setattr(reader_module, "open_table", made.open_table)
        return made

    return start


def rows(start: int, count: int) -> pa.Table:
    ids = pa.array(range(start, start + count), pa.int64())
    return pa.table({"id": ids, "name": ids.cast(pa.string()), "price": ids.cast(pa.float64())})


def read_all(reader: OdpsReader, columns: list[str]) -> pa.Table:
    return pa.concat_tables(
        [block.table for item in reader.fragments for block in reader.read(item, columns)]
    )


def test_addresses():
    path = "odps://p/tables/s.t/ds=2&ds=1/h=3, odps://p/tables/plain"
    assert [str(address) for address in parse_addresses(path)] == [
        "odps://p/tables/plain",
        "odps://p/tables/s.t/ds=1/h=3",
        "odps://p/tables/s.t/ds=2",
    ]
    assert parse_addresses("odps://p/tables/s.t")[0] == TableAddress("p", "t", "s", None)
    with pytest.raises(
        DataError, match=r"^data: 'odps://p/t' is no table; write odps://project/tables/table"
    ):
        parse_addresses("odps://p/t")


def test_rows_of_partitions_come_in_order_with_the_columns_asked_for(service):
    made = service(
        {"odps://p/tables/t/ds=1": rows(0, 150_000), "odps://p/tables/t/ds=2": rows(150_000, 70_000)}
    )
    reader = OdpsReader("odps://p/tables/t/ds=2&ds=1", config())
    assert reader.num_rows == 220_000
    assert [str(kind) for kind in reader.schemas[0].types] == ["int64", "string", "double"]
    reader.check_columns(["id", "name", "price"])
    table = read_all(reader, ["price", "id"])
    assert table.column_names == ["price", "id"]
    assert table["id"].to_pylist() == list(range(220_000))
    assert made.requests[0]["RequiredPartitions"] == ["ds=1"]
    assert made.requests[0]["SplitOptions"]["SplitMode"] == "RowOffset"
    assert made.requests[-1]["RequiredDataColumns"] == ["price", "id"]


def test_a_broken_read_resumes_where_it_stopped(service):
    service({"odps://p/tables/t": rows(0, 60_000)}, fail_reads=3)
    reader = OdpsReader("odps://p/tables/t", config())
    assert read_all(reader, ["id"])["id"].to_pylist() == list(range(60_000))


def test_a_read_that_never_works_is_an_error(service):
    service({"odps://p/tables/t": rows(0, 10)}, fail_reads=100)
    reader = OdpsReader("odps://p/tables/t", config())
    with pytest.raises(DataError, match=r"^data: cannot read from row 0 of odps://p/tables/t \("):
        read_all(reader, ["id"])


def test_identity_is_rows_and_time_of_change(service):
    service({"odps://p/tables/t": rows(0, 10), "odps://p/tables/u/ds=1": rows(0, 7)})
    reader = OdpsReader("odps://p/tables/t,odps://p/tables/u/ds=1", config())
    assert [(item.size, item.digest) for item in reader.identities] == [(10, "2026-01-02"), (7, "2026-01-01")]


def test_a_loader_over_a_table(service, open_loader):
    table = pa.table({"id": pa.array(range(50)), "cat": pa.array([i % 9 for i in range(50)])})
    service({"odps://p/tables/t": table})
    features = """
    feature_configs { id_feature { feature_name: "cat" expression: "item:cat"
  embedding_dim: 4 num_buckets: 9 } }
    """
    loader = open_loader(
        "odps://p/tables/t",
        "dataset_type: OdpsDataset batch_size: 20 num_workers: 2 shuffle: true",
        features=features,
    )
    ids = [i for _, carried in loader.epoch_with_rows() for i in carried["id"].to_pylist()]
    assert sorted(ids) == list(range(50))


def test_unknown_compression(service):
    service({"odps://p/tables/t": rows(0, 10)})
    with pytest.raises(
        ConfigError, match=r"odps_data_compression: there is no 'ZTSD'; did you mean 'ZSTD'\?"
    ):
        OdpsReader("odps://p/tables/t", config("odps_data_compression: 'ZTSD'"))


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "odps", None)
    with pytest.raises(
        RecgradError, match=r"needs pyodps \(.*\); install it with pip install 'recgrad\[odps\]'"
    ):
        OdpsReader("odps://p/tables/t", config())


def test_without_an_account(monkeypatch, tmp_path):
    pytest.importorskip("odps")
    for name in ("ODPS_ENDPOINT", "ODPS_CONFIG_FILE_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RecgradError, match="no MaxCompute account is given"):
        OdpsReader("odps://p/tables/t", config())
    (tmp_path / "conf").write_text("access_id=a\nend_point=http://localhost\n")
    monkeypatch.setenv("ODPS_CONFIG_FILE_PATH", str(tmp_path / "conf"))
    with pytest.raises(RecgradError, match=r"the file of ODPS_CONFIG_FILE_PATH, has no access_key$"):
        OdpsReader("odps://p/tables/t", config())


def test_the_settings_file_is_given_to_pyodps(monkeypatch, tmp_path):
    """Nobody listens at the endpoint; that pyodps tried it shows that the settings arrived."""
    odps = pytest.importorskip("odps")
    (tmp_path / "conf").write_text("access_id=a\naccess_key=b\nend_point=http://localhost:1/api\n")
    monkeypatch.setenv("ODPS_CONFIG_FILE_PATH", str(tmp_path / "conf"))
    retries = odps.options.retry_times
    odps.options.retry_times = 0
    try:
        with pytest.raises(DataError) as error:
            OdpsReader("odps://p/tables/t/ds=1", config())
    finally:
        odps.options.retry_times = retries
    assert str(error.value).startswith("data: cannot open odps://p/tables/t/ds=1 (")
    assert "localhost" in str(error.value)
    assert str(error.value).endswith("); check the endpoint and the account")
