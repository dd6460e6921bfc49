"""Conditions on rows: against Python over all rows, with and without what parquet footers know."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.check import check_rules
from recgrad.config import load_config
from recgrad.config.proto.data_pb2 import CsvDataset, DataConfig, ParquetDataset
from recgrad.data.readers.build import open_reader
from recgrad.data.readers.filtered import FilteredReader
from recgrad.data.readers.reader import Block, Fragment
from recgrad.data.readers.tables import open_table, read_column
from recgrad.data.readers.where import Rows
from recgrad.data.readers.where_text import parse_where, split_where
from recgrad.errors import DataError

ROWS = 1000
PARQUET = DataConfig(dataset_type=ParquetDataset)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = np.random.default_rng(0)
    number = rng.integers(0, 9, ROWS)
    return pa.table(
        {
            "row": np.arange(ROWS),
            "day": np.sort(rng.integers(20220425, 20220508, ROWS)),
            "tab": pa.array([None if n == 8 else int(n) for n in number]),
            "price": pa.array(np.where(number == 3, np.nan, rng.normal(size=ROWS))),
            "word": pa.array([None if n == 1 else "abcdefghi"[n] for n in number]),
            "when": pa.array([date(2022, 5, 1 + i * 20 // ROWS) for i in range(ROWS)]),
            "at": pa.array([datetime(2022, 5, 1 + i * 20 // ROWS, i % 24) for i in range(ROWS)]),
            "flag": pa.array(number > 4),
            "odd name": number,
        }
    )


@pytest.fixture(scope="module")
def path(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("where") / "log.parquet"
    pq.write_table(table, file, row_group_size=100)
    return str(file)


def rows_of(path: str, data: DataConfig = PARQUET) -> list[int]:
    return [int(value) for value in read_column(open_reader(path, data), "row").to_pylist()]


CASES: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("day < 20220501", lambda r: r["day"] < 20220501),
    ("day >= 20220506 and tab in (0, 1)", lambda r: r["day"] >= 20220506 and r["tab"] in (0, 1)),
    ("tab != 3", lambda r: r["tab"] is not None and r["tab"] != 3),
    ("not tab = 3", lambda r: r["tab"] is not None and r["tab"] != 3),
    ("tab not in (1, 2)", lambda r: r["tab"] is not None and r["tab"] not in (1, 2)),
    ("tab is null or day == 20220430", lambda r: r["tab"] is None or r["day"] == 20220430),
    ("tab is not null", lambda r: r["tab"] is not None),
    ("price > 0.5", lambda r: r["price"] > 0.5),
    ("not price > 0.5", lambda r: not r["price"] > 0.5),
    ("price != 0 and tab != 3", lambda r: r["price"] != 0 and r["tab"] not in (3, None)),
    ("word = 'c'", lambda r: r["word"] == "c"),
    ('word in ("a", "i") or word is null', lambda r: r["word"] in ("a", "i", None)),
    ("when < 2022-05-06", lambda r: r["when"] < date(2022, 5, 6)),
    ("when between 2022-05-03 and '2022-05-04'", lambda r: date(2022, 5, 3) <= r["when"] <= date(2022, 5, 4)),
    ("at >= 2022-05-06T12:00", lambda r: r["at"] >= datetime(2022, 5, 6, 12)),
    ("flag = true and `odd name` <= 7", lambda r: r["flag"] and r["odd name"] <= 7),
    ("(tab = 1 or tab = 2) and not (day < 20220430)", lambda r: r["tab"] in (1, 2) and r["day"] >= 20220430),
    ("row between 250 and 349", lambda r: 250 <= r["row"] < 350),
    ("row >= 100 and row < 200", lambda r: 100 <= r["row"] < 200),
]


@pytest.mark.parametrize(("condition", "holds"), CASES, ids=[case[0] for case in CASES])
def test_conditions_take_the_rows_that_python_takes(
    condition: str, holds: Callable[[dict[str, Any]], Any], table: pa.Table, path: str
) -> None:
    expected = [row["row"] for row in table.to_pylist() if holds(row)]
    assert 0 < len(expected) < ROWS
    assert rows_of(f"{path} where {condition}") == expected


def test_csv_files_take_conditions_as_well(table: pa.Table, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    pa.csv.write_csv(table.select(["row", "day", "tab", "word", "when"]), file)
    data = DataConfig(dataset_type=CsvDataset, with_header=True)
    expected = [r["row"] for r in table.to_pylist() if r["day"] < 20220501 and r["when"] > date(2022, 5, 2)]
    assert rows_of(f"{file} where day < 20220501 and when > 2022-05-02", data) == expected
    assert read_column(open_table(f"{file} where tab = 2"), "tab").unique().to_pylist() == [2]


def test_shares_by_hash_are_complete_and_disjoint(path: str, table: pa.Table) -> None:
    train = rows_of(f"{path} where hash(tab) % 10 < 7")
    rest = rows_of(f"{path} where hash(tab) % 10 >= 7")
    assert sorted(train + rest) == list(range(ROWS))
    tabs = table.column("tab").to_pylist()
    assert not {tabs[row] for row in train} & {tabs[row] for row in rest}
    by_row = rows_of(f"{path} where hash(row()) % 10 < 8")
    assert 740 < len(by_row) < 860
    assert sorted(by_row + rows_of(f"{path} where hash(row()) % 10 >= 8")) == list(range(ROWS))


def test_footers_spare_reading(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = open_reader(path, PARQUET)
    read: list[Fragment] = []
    original = type(reader).read

    def counted(self: Any, fragment: Fragment, columns: Any) -> Any:
        read.append(fragment)
        return original(self, fragment, columns)

    monkeypatch.setattr(type(reader), "read", counted)
    filtered = FilteredReader(reader, "row >= 350 and row < 700")
    assert len(read) == 1, "all but one row group are decided by their footers"
    assert [fragment.num_rows for fragment in filtered.fragments] == [50, 100, 100, 100]


OPS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}
leaf = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(list(OPS)), st.integers(-2, 2))


def written(tree: Any) -> str:
    if tree[0] == "not":
        return f"not ({written(tree[1])})"
    if tree[0] in ("and", "or"):
        return f"({written(tree[1])}) {tree[0]} ({written(tree[2])})"
    return "{} {} {}".format(*tree)


trees: Any = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner), st.tuples(st.sampled_from(["and", "or"]), inner, inner)
    ),
    max_leaves=5,
)
values = st.lists(st.tuples(*[st.one_of(st.none(), st.integers(-2, 2))] * 2), min_size=1, max_size=8)


@settings(max_examples=150, deadline=None)
@given(trees, values)
def test_what_ranges_promise_holds_for_every_row(
    tree: Any, rows: list[tuple[int | None, int | None]]
) -> None:
    from recgrad.data.readers.reader import ValueRange

    condition = parse_where(written(tree))
    columns = {name: pa.array([row[i] for row in rows], pa.int64()) for i, name in enumerate(("a", "b"))}
    ranges = {}
    for name, column in columns.items():
        known = [value for value in column.to_pylist() if value is not None]
        ranges[name] = ValueRange(min(known, default=None), max(known, default=None), len(known) < len(rows))
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    said = set(condition.mask(Rows(columns, np.arange(len(rows)))).to_pylist())
    assert said <= condition.outcomes(ranges, schema)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("day <", "a value is missing"),
        ("day < 3 4", "one too many"),
        ("day ~ 3", "has no meaning here"),
        ("day < three", "texts stand in quotes"),
        ("(day < 3", "')' is missing"),
        ("day not 3", "comes in or between"),
        ("3 < day", "a column's name is wanted"),
        ("hash(day) % 0 < 1", "at least 1"),
        ("", "a column is missing"),
        ("not " * 60 + "day < 3", "nested too deep"),
        ("dai < 3", "did you mean 'day'?"),
        ("word < 3", "put the value in quotes: '3'"),
        ("day < 'x'", "compare it with a number"),
        ("when < 20220506", "such as 2022-05-06"),
        ("when < 'yesterday'", "is no time"),
        ("flag = 'yes'", "true or false"),
        ("day > 30000000", "has no row where day > 30000000"),
    ],
)
def test_errors_say_what_is_wrong(condition: str, message: str, path: str) -> None:
    with pytest.raises(DataError) as caught:
        open_reader(f"{path} where {condition}", PARQUET)
    assert message in str(caught.value)


def test_the_check_reads_conditions_without_data() -> None:
    config = load_config({"train_input_path": "a.parquet where day <", "eval_input_path": "a.parquet"})
    assert any(
        "train_input_path: where day <: a value is missing" in str(p) for p in check_rules(config).problems
    )


def test_a_file_may_have_where_in_its_name(tmp_path: Path) -> None:
    file = tmp_path / "rows where it began.parquet"
    pq.write_table(pa.table({"row": [1, 2]}), file)
    assert split_where(str(file)) == (str(file), None)
    assert rows_of(str(file)) == [1, 2]


def test_rows_keep_their_numbers(path: str) -> None:
    reader = open_reader(f"{path} where hash(row()) % 3 = 1", PARQUET)
    for fragment in reader.fragments:
        for block in reader.read(fragment, ["row"]):
            assert isinstance(block, Block)
            part = block.slice(2, 5)
            assert part.row_numbers().tolist() == part.table.column("row").to_pylist()


def test_bad_rows_of_a_range_are_found_by_their_number(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("row,tab\n" + "".join(f"{i},{'x' if i == 7 else i % 2}\n" for i in range(20)))
    data = DataConfig(dataset_type=CsvDataset, with_header=True)
    data.input_fields.add(input_name="tab", input_type=1)
    reader = open_reader(f"{file} where tab = 1", data)
    blocks = [block for item in reader.fragments for block in reader.read(item, ["row"])]
    assert [block.row_number(bad.row, 0) for block in blocks for bad in block.bad] == [7]
    assert reader.num_rows == 10


def test_a_position_of_another_range_is_refused(path: str) -> None:
    first, second = (open_reader(f"{path} where row < {n}", PARQUET).identities[0] for n in (300, 400))
    assert first != second
