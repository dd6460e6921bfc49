"""An index in PostgreSQL with pgvector: vectors, ids and columns are rows of a table, and are searched there.

Search is exact unless the table has an index of pgvector (hnsw, ivf): it is read in order of distance, so
that filters and exclusions leave no list shorter than k while k items may be found. Where an approximate
search finds fewer, or a filter leaves so little that it would, the exact one is made. What the index is
(similarity, kind, id column, golden rows) is a row of `recgrad_indexes`. Needs psycopg (pip install
'recgrad[postgres]') and the extension `vector` in the server.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pyarrow as pa

from recgrad.data.arrow_columns import as_bytes
from recgrad.data.ids import KnownIds, plain_ids
from recgrad.errors import RecgradError
from recgrad.retrieval.approximate import Settings
from recgrad.retrieval.filters import Filter
from recgrad.retrieval.interests import search_interests
from recgrad.retrieval.lists import Array, Found, Ints, ItemSets
from recgrad.serving.by_vectors import ByVectors
from recgrad.serving.index import check_golden
from recgrad.serving.postgres_kinds import Kind, choose_kind

TABLE = "recgrad_items"
PREFIXES = ("postgresql://", "postgres://")
_DISTANCES = {"INNER_PRODUCT": "<#>", "COSINE": "<#>", "EUCLID": "<->"}  # <#> is minus the inner product
_COMPARISONS = {ast.Eq: "=", ast.NotEq: "<>", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise RecgradError(
            "postgresql: needs psycopg; install it with: pip install 'recgrad[postgres]'"
        ) from error
    return psycopg


@contextmanager
def _connected(uri: str) -> Iterator[Any]:
    psycopg = _psycopg()
    try:
        with psycopg.connect(uri) as connection:
            yield connection
    except psycopg.Error as error:
        raise RecgradError(f"postgresql: {str(error).strip()}") from error


def shown(uri: str, table: str) -> str:
    """A table as people see it: without user and password, which a query string may have too."""
    parts = urlsplit(uri)
    places = [
        f"{name}={value}" for name, value in parse_qsl(parts.query) if name in ("host", "port", "dbname")
    ]
    query = f"?{'&'.join(places)}" if places else ""
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}{query} table {table}"


def version_of(uri: str, table: str) -> str:
    """The version of an index, which every change of it raises."""
    with _connected(uri) as connection:
        query = "SELECT manifest FROM recgrad_indexes WHERE name = %s"
        found = connection.execute(query, (table,)).fetchone()
    return "" if found is None else str(json.loads(found[0])["version"])


class PostgresIndex(ByVectors):
    """Items in a table of PostgreSQL; has what `recommend` needs of an index.

    Args:
        uri: of the database, postgresql://user@host/database.
        table: its name.
    """

    def __init__(self, uri: str, table: str = TABLE) -> None:
        self.uri, self.name = uri, table
        self.path = shown(uri, table)
        with _connected(uri) as connection:
            there = connection.execute("SELECT to_regclass('recgrad_indexes')").fetchone()[0]
            query = "SELECT manifest, golden FROM recgrad_indexes WHERE name = %s"
            found = connection.execute(query, (table,)).fetchone() if there else None
            if found is None:
                raise RecgradError(f"index '{self.path}': there is none; make it with `recgrad index … --to`")
            self.manifest, golden = json.loads(found[0]), found[1]
            self.similarity: str = self.manifest["similarity"]
            rows = connection.execute(_sql("SELECT number, {} FROM {} ORDER BY number", self.id_field, table))
            pairs = rows.fetchall()
        self._golden = None if golden is None else pa.ipc.open_stream(golden).read_all()
        self._numbers = np.array([number for number, _ in pairs], np.int64)
        self._known = KnownIds(pa.array([name for _, name in pairs]), f"index '{self.path}'")

    @property
    def kind(self) -> Kind:
        """How it is searched."""
        return Kind(self.manifest.get("kind", "exact"), self.manifest.get("settings", {}))

    @property
    def num_bytes(self) -> int:
        """What the table takes with its indexes."""
        with _connected(self.uri) as connection:
            query = _sql("SELECT pg_total_relation_size(to_regclass(quote_ident(%s)))")
            return int(connection.execute(query, (self.name,)).fetchone()[0])

    @property
    def id_field(self) -> str:
        """The column of ids."""
        return str(self.manifest["id_field"])

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, ids: pa.Array) -> Ints:
        """The numbers of ids, −1 for those that it has not."""
        found = self._known.numbers(ids)
        return np.where(found < 0, -1, self._numbers[found]) if len(self._numbers) else found

    def ids_of(self, numbers: Array) -> pa.Array:
        """The ids of items by number."""
        return self._known.ids.take(pa.array(np.searchsorted(self._numbers, numbers)))

    def places(self, numbers: Array) -> Ints:
        """The places of items by number in the order in which they were written."""
        return np.searchsorted(self._numbers, numbers)

    def check_model(self, embedder: Any) -> None:
        """Raise unless a model gives the items the vectors that they have here."""
        if self._golden is not None:
            check_golden(self._golden, embedder, self.path)

    def update(self, table: pa.Table, vectors: Array) -> None:
        """Add items, or change those whose ids are there, in one transaction."""
        KnownIds(table.column(self.id_field), "items")
        names = [name for name, _ in self.manifest["columns"]]
        missing = [name for name in names if name not in table.column_names]
        if missing:
            raise RecgradError(f"index '{self.path}': the new items have no column '{missing[0]}'; give all")
        with _connected(self.uri) as connection:
            _delete(connection, self, table.column(self.id_field))
            _copy(connection, self.name, table.select(names), vectors)
            self._raise_version(connection)
        self.__init__(self.uri, self.name)  # type: ignore[misc]

    def remove(self, ids: Any) -> int:
        """Take items out; returns how many of the ids were there."""
        with _connected(self.uri) as connection:
            gone = _delete(connection, self, ids)
            self._raise_version(connection)
        self.__init__(self.uri, self.name)  # type: ignore[misc]
        return gone

    def _raise_version(self, connection: Any) -> None:
        """Let servers know that it has changed."""
        manifest = {**self.manifest, "version": self.manifest["version"] + 1}
        query = "UPDATE recgrad_indexes SET manifest = %s WHERE name = %s"
        connection.execute(query, (json.dumps(manifest), self.name))

    def view(self, condition: str | None = None) -> PostgresView:
        """What a filter leaves of it, for searching."""
        return PostgresView(self, None if condition is None else Filter(condition))


class PostgresView:
    """The items that may be found."""

    def __init__(self, index: PostgresIndex, condition: Filter | None) -> None:
        self._index, self._distance = index, _DISTANCES[index.similarity]
        columns = [name for name, _ in index.manifest["columns"]]
        self._where, self._values = ("TRUE", []) if condition is None else sql_of(condition, columns)
        with _connected(index.uri) as connection:
            query = _sql(f"SELECT count(*) FROM {{}} WHERE {self._where}", index.name)
            self.count = int(connection.execute(query, self._values).fetchone()[0])

    def search(self, vectors: Array, k: int, banned: ItemSets | None = None) -> Found:
        """The k best items of each query by number, with their similarities; see `View.search`."""
        with _connected(self._index.uri) as connection:
            return search_interests(
                lambda rows, sets: self._search(connection, rows, k, sets), np.asarray(vectors), banned
            )

    def _search(self, connection: Any, queries: Array, k: int, banned: ItemSets | None) -> Found:
        items = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        for row, vector in enumerate(queries):
            gone = [] if banned is None else banned.rows(row, row + 1).items.tolist()
            found = self._near(connection, _text(vector), k, gone)
            if found is None or len(found) < min(k, self.count):
                found = self._nearest(connection, _text(vector), k, gone)
            items[row, : len(found)] = [number for number, _ in found]
            scores[row, : len(found)] = [-far for _, far in found]
        return Found(items, scores)

    def _nearest(self, connection: Any, vector: str, k: int, gone: list[int]) -> list[tuple[int, float]]:
        """The nearest items and their distances; the 0 keeps the planner from an approximate index."""
        text = (
            f"SELECT number, (embedding {self._distance} %s::vector) + 0.0 AS far FROM {{}} "
            f"WHERE {self._where} AND NOT (number = ANY(%s)) ORDER BY far, number LIMIT %s"
        )
        values = [vector, *self._values, gone, k]
        found: list[tuple[int, float]] = connection.execute(_sql(text, self._index.name), values).fetchall()
        return found

    def _near(self, connection: Any, vector: str, k: int, gone: list[int]) -> list[tuple[int, float]] | None:
        """Near items by the approximate index, if there is one that can find as many."""
        share = self.count / max(len(self._index), 1)
        reach = self._index.kind.reach(k, len(gone), min(share, 1.0))
        if reach is None:
            return None
        connection.execute("SELECT set_config(%s, %s, true)", (reach[0], str(reach[1])))
        far = f"embedding {self._distance} %s::vector"
        text = (
            f"SELECT number, far FROM (SELECT number, {far} AS far FROM {{}} "
            f"WHERE {self._where} AND NOT (number = ANY(%s)) ORDER BY {far} LIMIT %s) AS near "
            "ORDER BY far, number"
        )
        values = [vector, *self._values, gone, vector, k]
        found: list[tuple[int, float]] = connection.execute(_sql(text, self._index.name), values).fetchall()
        return found


def write_postgres(
    uri: str,
    table: pa.Table,
    vectors: Array,
    *,
    id_field: str,
    similarity: str,
    golden: Any,
    name: str = TABLE,
    kind: str = "exact",
    settings: Settings | None = None,
) -> PostgresIndex:
    """Write items to a table, which takes the place of one of this name when it is whole.

    Args:
        uri: of the database.
        table: ids and other columns of items.
        vectors: of the same items, as the model gives them.
        id_field: the column of ids.
        similarity: by which they are compared.
        golden: rows to know the model by.
        name: of the table.
        kind: exact, hnsw or ivf.
        settings: of the kind.
    """
    chosen = choose_kind(kind, settings or Settings(), len(vectors), vectors.shape[1])
    KnownIds(table.column(id_field), f"items: column '{id_field}'")
    columns = [(field.name, _type(field)) for field in table.schema]
    if taken := {"number", "embedding"} & {column for column, _ in columns}:
        raise RecgradError(
            f"postgresql: items have a column '{min(taken)}', which the table needs; rename it"
        )
    manifest: dict[str, Any] = {
        "id_field": id_field,
        "similarity": similarity,
        "columns": columns,
        "dim": vectors.shape[1],
        "kind": chosen.name,
        "settings": chosen.settings,
    }
    with _connected(uri) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS recgrad_indexes (name text PRIMARY KEY, manifest text, golden bytea)"
        )
        query = "SELECT manifest FROM recgrad_indexes WHERE name = %s"
        old = connection.execute(query, (name,)).fetchone()
        manifest["version"] = 1 if old is None else json.loads(old[0]).get("version", 0) + 1
        connection.execute(_sql("DROP TABLE IF EXISTS {}", name))
        kinds = ", ".join(f"{{}} {kind}" for _, kind in columns)
        text = (
            f"CREATE TABLE {{}} (number bigserial PRIMARY KEY, {kinds}, embedding vector({vectors.shape[1]}))"
        )
        connection.execute(_sql(text, name, *(column for column, _ in columns)))
        connection.execute(_sql("CREATE UNIQUE INDEX ON {} ({})", name, id_field))
        _copy(connection, name, table, vectors)
        if (made := chosen.index_sql(similarity)) is not None:
            _build(connection, _sql(made, name), kind)
        connection.execute(_sql("ANALYZE {}", name))
        kept = None if golden is None else as_bytes(golden)
        connection.execute(
            "INSERT INTO recgrad_indexes VALUES (%s, %s, %s) ON CONFLICT (name) DO UPDATE SET "
            "manifest = excluded.manifest, golden = excluded.golden",
            (name, json.dumps(manifest), kept),
        )
    return PostgresIndex(uri, name)


def _build(connection: Any, query: Any, kind: str) -> None:
    try:
        connection.execute(query)
    except _psycopg().errors.ProgramLimitExceeded as error:
        raise RecgradError(
            f"postgresql: cannot build {kind}: {str(error).strip()}; raise maintenance_work_mem of the role "
            "or server, or ask for fewer lists with --ivf-nlist"
        ) from error


def _delete(connection: Any, index: PostgresIndex, ids: Any) -> int:
    values = plain_ids(ids, "ids").to_pylist()
    query = _sql("DELETE FROM {} WHERE {}::text = ANY(%s)", index.name, index.id_field)
    return int(connection.execute(query, ([str(value) for value in values],)).rowcount)


def _copy(connection: Any, name: str, table: pa.Table, vectors: Array) -> None:
    names = table.column_names
    places = ", ".join("{}" for _ in names)
    with (
        connection.cursor() as cursor,
        cursor.copy(_sql(f"COPY {{}} ({places}, embedding) FROM STDIN", name, *names)) as copy,
    ):
        rows = zip(*(table.column(column).to_pylist() for column in names), (_text(v) for v in vectors))
        for row in rows:
            copy.write_row(row)


def sql_of(condition: Filter, columns: list[str]) -> tuple[str, list[Any]]:
    """A filter as SQL with places for its values."""
    # What it accepts, and its errors, are those of the other kinds of index.
    values: list[Any] = []

    def side(node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            condition.check_column(node.id, columns)
            return '"' + node.id.replace('"', '""') + '"'
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return f"(- {side(node.operand)})"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return f"(NOT {side(node.operand)})"
        if isinstance(node, ast.BoolOp):
            join = " AND " if isinstance(node.op, ast.And) else " OR "
            return "(" + join.join(side(part) for part in node.values) + ")"
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            parts = [one(a, op, b) for a, op, b in zip(sides, node.ops, node.comparators)]
            return "(" + " AND ".join(parts) + ")"
        values.append(ast.literal_eval(node))
        return "%s"

    def one(left: ast.expr, op: ast.cmpop, right: ast.expr) -> str:
        if isinstance(op, (ast.Is, ast.IsNot)):
            return f"{side(left)} IS {'NOT ' if isinstance(op, ast.IsNot) else ''}NULL"
        if isinstance(op, (ast.In, ast.NotIn)):
            listed = isinstance(right, (ast.List, ast.Tuple))
            first = side(left)
            if listed:
                values.append(list(ast.literal_eval(right)))
            text = f"{first} = ANY(%s)" if listed else f"{first} = ANY({side(right)})"
            return f"(NOT {text})" if isinstance(op, ast.NotIn) else text
        return f"{side(left)} {_COMPARISONS[type(op)]} {side(right)}"

    condition.check_form()
    return side(condition.tree), values


def _type(field: pa.Field) -> str:
    kind, more = field.type, ""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind, more = kind.value_type, "[]"
    for test, name in (
        (pa.types.is_boolean, "boolean"),
        (pa.types.is_integer, "bigint"),
        (pa.types.is_floating, "double precision"),
        (pa.types.is_string, "text"),
        (pa.types.is_large_string, "text"),
    ):
        if test(kind):
            return name + more
    raise RecgradError(
        f"postgresql: column '{field.name}' is {field.type}, which has no type there; leave it out"
    )


def _sql(text: str, *names: str) -> Any:
    """A query with names of tables and columns, quoted, in the places of `{}`."""
    from psycopg import sql

    return sql.SQL(text).format(*(sql.Identifier(name) for name in names))


def _text(vector: Array) -> str:
    return "[" + ",".join(f"{x:.9g}" for x in np.asarray(vector).tolist()) + "]"
