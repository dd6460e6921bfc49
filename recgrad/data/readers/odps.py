"""MaxCompute (ODPS) tables through pyodps' storage API; a fragment is a range of rows.

Needs the extra `recgrad[odps]`. Credentials are found as pyodps documents: by
`ODPS.from_environments()` (ODPS_ENDPOINT and the ALIBABA_CLOUD_… or ODPS_… variables of an
account), or from the file that ODPS_CONFIG_FILE_PATH names, with lines `access_id=…`,
`access_key=…`, `end_point=…`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.readers.reader import BLOCK_ROWS, READERS, Block, FileIdentity, Fragment, Reader
from recgrad.errors import ConfigError, DataError, Problem, RecgradError, nearest

_BATCH_ROWS = 20_000  # the most that the service sends at once
_RETRIES = 4
_REFRESH_SECONDS = 600.0


@dataclass(frozen=True)
class TableAddress:
    """A table, or one partition of it: `odps://project/tables/[schema.]table[/p1=a/p2=b]`."""

    project: str
    table: str
    schema: str | None = None
    partition: str | None = None

    def __str__(self) -> str:
        name = f"{self.schema}.{self.table}" if self.schema else self.table
        return f"odps://{self.project}/tables/{name}" + (f"/{self.partition}" if self.partition else "")


def parse_addresses(input_path: str) -> list[TableAddress]:
    """The tables and partitions of an input path, sorted, each once.

    Addresses are joined by commas; `&` joins several partitions of one table.
    """
    found = set()
    for entry in (part.strip() for part in input_path.split(",")):
        if not entry:
            continue
        parts = entry.removeprefix("odps://").split("/")
        if not entry.startswith("odps://") or len(parts) < 3 or parts[1] != "tables" or not parts[2]:
            raise DataError(
                f"data: '{entry}' is no table; write odps://project/tables/table or "
                "odps://project/tables/table/partition=value&partition=value"
            )
        schema, _, table = parts[2].rpartition(".")
        partitions = [item.strip("/") for item in "/".join(parts[3:]).split("&")]
        for partition in partitions:
            found.add(TableAddress(parts[0], table, schema or None, partition or None))
    if not found:
        raise DataError(f"data: input path '{input_path}' is empty; give a table")
    return sorted(found, key=str)


@READERS.register("OdpsDatasetV1")
@READERS.register("OdpsDataset")
class OdpsReader(Reader):
    """Reads MaxCompute tables, only the columns that are asked for.

    Partitions are always read in the order of their names (`is_orderby_partition`). A partition
    is known by its number of rows and the time of its last change.
    """

    def __init__(self, input_path: str, config: DataConfig) -> None:
        self._odps = _import_odps()
        self._compression = self._find_compression(config.odps_data_compression)
        self._addresses = parse_addresses(input_path)
        self._lock = threading.Lock()
        self._sessions: dict[tuple[int, tuple[str, ...]], _Session] = {}
        self._tables = [open_table(address, config.odps_data_quota_name) for address in self._addresses]
        self.files = tuple(str(address) for address in self._addresses)
        to_arrow = self._odps.tunnel.io.types.odps_schema_to_arrow_schema
        self.schemas = tuple(to_arrow(table.table_schema) for table, _ in self._tables)
        counts = [self._session(i, ()).num_rows for i in range(len(self._tables))]
        self.identities = tuple(
            FileIdentity(str(address), count, _changed(table, address.partition))
            for address, (table, _), count in zip(self._addresses, self._tables, counts, strict=True)
        )
        self.fragments = tuple(
            Fragment(file, index, start, min(BLOCK_ROWS, count - start))
            for file, count in enumerate(counts)
            for index, start in enumerate(range(0, count, BLOCK_ROWS))
        )

    def read(self, fragment: Fragment, columns: Sequence[str]) -> Iterator[Block]:
        """The rows of a range, requested again from where a broken connection left off."""
        session = self._session(fragment.file, tuple(columns))
        if session.num_rows != self.identities[fragment.file].size:
            raise DataError(f"data: {self.files[fragment.file]} changed while it was read; start again")
        at, failures = 0, 0
        while at < fragment.num_rows:
            try:
                for batch in session.read(fragment.first_row + at, fragment.num_rows - at, self._compression):
                    table = pa.Table.from_batches([batch]).select(list(columns))
                    at, failures = at + batch.num_rows, 0
                    yield Block(table)
                if at < fragment.num_rows:
                    raise ConnectionError("the service sent fewer rows than were asked for")
            except (OSError, pa.ArrowException, self._odps.errors.ODPSError) as error:
                failures += 1
                if failures > _RETRIES:
                    row = fragment.first_row + at
                    raise DataError(
                        f"data: cannot read from row {row} of {self.files[fragment.file]} ({error})"
                    ) from error
                time.sleep(2.0**failures / 4)

    def _session(self, file: int, columns: tuple[str, ...]) -> _Session:
        with self._lock:
            session = self._sessions.get((file, columns))
            if session is None:
                partition = self._addresses[file].partition
                session = _Session(self._odps, self._tables[file][1], self.files[file], partition, columns)
                self._sessions[file, columns] = session
            return session

    def _find_compression(self, name: str) -> Any:
        known = [item.name for item in self._odps.apis.storage_api.Compression]
        if name not in known:
            hint = nearest(name, known) or f"; use {', '.join(known)}"
            raise ConfigError([Problem("data_config.odps_data_compression", f"there is no '{name}'{hint}")])
        return self._odps.apis.storage_api.Compression[name]


class _Session:
    """A read session: a snapshot of a table's rows that can be read by row number."""

    def __init__(
        self, odps: Any, client: Any, name: str, partition: str | None, columns: tuple[str, ...]
    ) -> None:
        api = odps.apis.storage_api
        self._api = api
        self._client = client
        request = api.TableBatchScanRequest(
            required_data_columns=list(columns),
            required_partitions=[partition] if partition else [],
            split_options=api.SplitOptions.get_default_options(api.SplitOptions.SplitMode.ROW_OFFSET),
        )
        try:
            response = client.create_read_session(request)
            while response.session_status == api.SessionStatus.INIT:
                time.sleep(0.5)
                response = client.get_read_session(api.SessionRequest(response.session_id))
        except (OSError, odps.errors.ODPSError) as error:
            raise DataError(
                f"data: cannot read {name} ({error}); check the table and the rights on it"
            ) from error
        self._id = response.session_id
        self._refreshed = time.monotonic()
        self.num_rows = int(response.record_count)

    def read(self, start: int, count: int, compression: Any) -> Iterator[pa.RecordBatch]:
        """`count` rows from row `start`."""
        if time.monotonic() - self._refreshed > _REFRESH_SECONDS:
            self._client.get_read_session(self._api.SessionRequest(self._id, refresh=True))
            self._refreshed = time.monotonic()
        request = self._api.ReadRowsRequest(
            session_id=self._id,
            row_index=start,
            row_count=count,
            max_batch_rows=min(count, _BATCH_ROWS),
            compression=compression,
        )
        reader = self._client.read_rows_arrow(request)
        while (batch := reader.read()) is not None:
            yield batch


def open_table(address: TableAddress, quota: str) -> tuple[Any, Any]:
    """The pyodps table and its storage client."""
    odps = _import_odps()
    entry = _connect(odps, address.project)
    try:
        table = entry.get_table(address.table, project=address.project, schema=address.schema)
        table.reload()  # what is not there is found here, not at its first use
        client = odps.apis.storage_api.StorageApiArrowClient(entry, table, quota_name=quota)
    except (OSError, odps.errors.ODPSError) as error:
        raise DataError(
            f"data: cannot open {address} ({error}); check the endpoint and the account"
        ) from error
    return table, client


def _connect(odps: Any, project: str) -> Any:
    path = os.environ.get("ODPS_CONFIG_FILE_PATH")
    if path:
        settings = _read_settings(path)
        return odps.ODPS(
            settings["access_id"], settings["access_key"], project=project, endpoint=settings["end_point"]
        )
    entry = odps.ODPS.from_environments()
    if entry is None:
        raise RecgradError(
            "data: no MaxCompute account is given; set ODPS_ENDPOINT and the variables of an account "
            "as pyodps "
            "documents them, or name a file with access_id, access_key and end_point in ODPS_CONFIG_FILE_PATH"
        )
    return entry


def _read_settings(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            pairs = [line.strip().partition("=") for line in file if "=" in line]
    except OSError as error:
        raise RecgradError(
            f"data: cannot read the file of ODPS_CONFIG_FILE_PATH, {path} ({error})"
        ) from error
    settings = {key.strip(): value.strip() for key, _, value in pairs}
    missing = [name for name in ("access_id", "access_key", "end_point") if not settings.get(name)]
    if missing:
        raise RecgradError(f"data: {path}, the file of ODPS_CONFIG_FILE_PATH, has no {', '.join(missing)}")
    return settings


def _changed(table: Any, partition: str | None) -> str:
    """When the data last changed, as text."""
    return str((table.get_partition(partition) if partition else table).last_data_modified_time)


def _import_odps() -> Any:
    try:
        import odps
        import odps.apis.storage_api
        import odps.errors
        import odps.tunnel.io.types
    except ImportError as error:
        raise RecgradError(
            f"data: reading MaxCompute tables needs pyodps ({error}); install it with pip install "
            "'recgrad[odps]'"
        ) from error
    return odps
