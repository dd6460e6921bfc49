"""What cannot be parsed in a CSV file is named by row, column and value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recgrad.data import Loader
from recgrad.errors import DataError

CSV = "dataset_type: CsvDataset with_header: true batch_size: 8 num_workers: 1 label_fields: 'label'"
TYPES = "input_fields_str: 'id:INT64;label:INT64;price:FLOAT;cat:INT64;tags:STRING;clicks:STRING'"

OpenCsv = Callable[..., Loader]


@pytest.fixture
def open_csv(tmp_path: Path, open_loader) -> OpenCsv:
    """A loader of a file of 30 good rows, some of them replaced by other bytes."""

    def write(replaced: dict[int, bytes], text: str = "") -> Loader:
        lines = [f"{i},{i % 2},0.5,{i % 9},a|b,1;2".encode() for i in range(30)]
        for row, line in replaced.items():
            lines[row] = line
        (tmp_path / "a.csv").write_bytes(b"\n".join([b"id,label,price,cat,tags,clicks", *lines]))
        return open_loader(str(tmp_path / "a.csv"), f"{CSV} {text}")

    return write


@pytest.mark.parametrize(
    ("replaced", "text", "message"),
    [
        (
            {20: b"20,0,0.5,many,a|b,1;2"},
            TYPES,
            "column cat: 'many' is not a value of type int64 (column 'cat', row 20 of a.csv); correct the "
            "file, or the type in data_config.input_fields",
        ),
        (
            {15: b"15,1,0.5"},
            "",
            "line: the line has 3 fields where 6 are expected: '15,1,0.5' (row 15 of a.csv); correct the "
            "line, or data_config.delimiter",
        ),
        (
            {7: b"7,1,0.5,7,\xff|b,1;2"},
            TYPES,
            "column tags: '\\\\xff|b' is not text in UTF-8 (column 'tags', row 7 of a.csv); correct the "
            "file, or the type in data_config.input_fields",
        ),
    ],
    ids=["type", "fields", "bytes"],
)
def test_what_cannot_be_parsed_is_named(
    open_csv: OpenCsv, replaced: dict[int, bytes], text: str, message: str
) -> None:
    with pytest.raises(DataError) as error:
        list(open_csv(replaced, text).epoch())
    assert str(error.value) == message


def test_nan_is_not_null(open_csv: OpenCsv) -> None:
    loader = open_csv({4: b"4,0,nan,4,a|b,1;2", 5: b"5,1,,5,a|b,1;2"})
    with pytest.raises(
        DataError, match=r"^feature price: nan is not a finite number \(column 'price', row 4 of a.csv\); "
    ):
        list(loader.epoch())


def test_bad_lines_are_skipped_and_rows_keep_their_numbers(open_csv: OpenCsv) -> None:
    bad = {4: b"4,0", 11: b"11,1,0.5,many,a|b,1;2", 12: b"12,0,0.5,3,a|b,1;2,9,9"}
    loader = open_csv(bad, f"{TYPES} on_bad_row: SKIP max_bad_row_ratio: 0.1")
    rows = []
    for batch, carried in loader.epoch_with_rows():
        assert batch.origin.row.tolist() == carried["id"].to_pylist()
        rows += carried["id"].to_pylist()
    assert rows == [i for i in range(30) if i not in bad]
