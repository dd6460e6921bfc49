from __future__ import annotations

import csv as python_csv
import gzip
import io
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.readers import csv_index
from recgrad.data.readers.csv import CsvReader
from recgrad.errors import ConfigError, DataError


def config(text: str = "with_header: true") -> DataConfig:
    from google.protobuf import text_format

    return text_format.Parse(f"dataset_type: CsvDataset {text}", DataConfig())


def read_all(reader: CsvReader, columns: list[str] | None = None) -> pa.Table:
    columns = columns or reader.schemas[0].names
    return pa.concat_tables(
        [block.table for item in reader.fragments for block in reader.read(item, columns)]
    )


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Many blocks even in small files."""
    monkeypatch.setattr(csv_index, "BLOCK_BYTES", 100)
    monkeypatch.setattr(csv_index, "GZIP_BLOCK_BYTES", 150)


def test_header_types_and_spaces(tmp_path: Path):
    (tmp_path / "a.csv").write_text("id,name,price\n1, x,0.5\n 2,y , 1\n3,,\n")
    reader = CsvReader(str(tmp_path / "a.csv"), config())
    assert [str(kind) for kind in reader.schemas[0].types] == ["int64", "string", "double"]
    assert read_all(reader).to_pydict() == {
        "id": [1, 2, 3],
        "name": [" x", "y ", ""],
        "price": [0.5, 1.0, None],
    }
    assert read_all(reader, ["price"]).column_names == ["price"]


def test_names_and_types_from_the_config(tmp_path: Path):
    (tmp_path / "a.tsv").write_text("1\t7\t2022-01-01\n2\t8\t2022-01-02")
    for text in (
        "input_fields { input_name: 'a' input_type: STRING } input_fields { input_name: 'b' "
        "input_type: FLOAT } "
        "input_fields { input_name: 'c' }",
        "input_fields_str: 'a:STRING; b:FLOAT; c'",
    ):
        reader = CsvReader(str(tmp_path / "a.tsv"), config(f"delimiter: '\\t' {text}"))
        assert [str(kind) for kind in reader.schemas[0].types] == ["string", "float", "string"]
        assert read_all(reader).to_pydict() == {
            "a": ["1", "2"],
            "b": [7.0, 8.0],
            "c": ["2022-01-01", "2022-01-02"],
        }
    reader = CsvReader(
        str(tmp_path / "a.tsv"), config("delimiter: '\\t' input_fields_str: 'a:INT;b:BIGINT;c:STRING'")
    )
    assert [str(kind) for kind in reader.schemas[0].types] == ["int32", "int64", "string"]


FIELDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)


@given(
    rows=st.lists(st.tuples(FIELDS, FIELDS, st.integers(-(2**40), 2**40)), min_size=1, max_size=60),
    zipped=st.booleans(),
    members=st.integers(1, 3),
    ending=st.sampled_from(["\n", "\r\n", "\r"]),
    bom=st.booleans(),
    last=st.booleans(),
    gaps=st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_comes_back(tmp_path: Path, rows, zipped, members, ending, bom, last, gaps):
    """Quotes, separators and line ends inside values, unicode, gzip members, a missing last line end."""
    text = io.StringIO(newline="")
    writer = python_csv.writer(text, lineterminator=ending, quoting=python_csv.QUOTE_NONNUMERIC)
    writer.writerow(["a", "b", "n"])
    for row in rows:
        writer.writerow(row)
        if gaps:
            text.write(ending)
    data = (b"\xef\xbb\xbf" if bom else b"") + text.getvalue().encode()
    if not last:
        data = data.rstrip(ending.encode()) if gaps else data[: -len(ending)]
    name = "x.csv.gz" if zipped else "x.csv"
    if zipped:
        step = -(-len(data) // members)
        data = b"".join(gzip.compress(data[i : i + step]) for i in range(0, len(data), step))
    (tmp_path / name).write_bytes(data)
    text_types = "with_header: true input_fields_str: 'a:STRING;b:STRING;n:INT64'"
    reader = CsvReader(str(tmp_path / name), config(text_types))
    table = read_all(reader)
    assert list(zip(*(table[c].to_pylist() for c in ("a", "b", "n")), strict=True)) == rows
    assert reader.num_rows == len(rows)
    # Blocks can be read in any order.
    backwards = [block.table for item in reversed(reader.fragments) for block in reader.read(item, ["n"])]
    assert pa.concat_tables(backwards[::-1])["n"].to_pylist() == [n for _, _, n in rows]
    assert [(f.first_row, f.num_rows) for f in reader.fragments] == [
        (sum(g.num_rows for g in reader.fragments[:i]), f.num_rows) for i, f in enumerate(reader.fragments)
    ]


def test_large_files_have_many_blocks_and_little_to_remember(tmp_path: Path, monkeypatch):
    monkeypatch.undo()
    lines = "".join(f"{i},{i * 7919 % 1000003},text number {i % 97}\n" for i in range(700_000))
    for name, data in (("a.csv", lines.encode()), ("b.csv.gz", gzip.compress(lines.encode(), 1))):
        (tmp_path / name).write_bytes(data)
        reader = CsvReader(str(tmp_path / name), config("input_fields_str: 'i:INT64;k:INT64;t:STRING'"))
        assert len(reader.fragments) == (5 if name == "a.csv" else 3)
        table = read_all(reader)
        assert table["i"].to_pylist() == list(range(700_000))


def test_files_of_a_folder_come_in_order_and_headers_may_differ_in_order(tmp_path: Path):
    (tmp_path / "b.csv").write_text("y,x\n3,4\n")
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "notes.md").write_text("no data")
    reader = CsvReader(str(tmp_path), config())
    assert reader.files == ("a.csv", "b.csv")
    assert read_all(reader, ["x", "y"]).to_pydict() == {"x": [1, 4], "y": [2, 3]}


def test_any_fsspec_file_system(tmp_path: Path):
    import fsspec

    memory = fsspec.filesystem("memory")
    with memory.open("/folder/a.csv.gz", "wb") as file:
        file.write(gzip.compress(b"x,y\n1,2\n3,4\n"))
    reader = CsvReader("memory://folder/*.csv.gz", config())
    assert read_all(reader).to_pydict() == {"x": [1, 3], "y": [2, 4]}
    memory.rm("/folder", recursive=True)


def test_the_same_content_has_the_same_identity(tmp_path: Path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.csv").write_text("x\n1\n")
    first, second = (CsvReader(str(tmp_path / folder), config()).identities for folder in ("one", "two"))
    assert first == second
    (tmp_path / "two" / "a.csv").write_text("x\n2\n")
    assert CsvReader(str(tmp_path / "two"), config()).identities != first


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "data_config: a CSV file without a header needs input_fields, one for each column in order; "
            "or set with_header: true",
        ),
        (
            "with_header: true delimiter: '||'",
            "data_config.delimiter: must be one ASCII character other than a quote, got '||'",
        ),
        (
            "input_fields_str: 'a:INT64;a:INT64'",
            "data_config.input_fields: column 'a' is named twice; keep one",
        ),
        (
            "input_fields_str: 'a:INT46'",
            "data_config.input_fields: column 'a' has no type 'INT46'; did you mean 'INT64'?",
        ),
        (
            "input_fields { input_name: 'a' } input_fields_str: 'a:INT64'",
            "data_config: input_fields and input_fields_str are both set; keep one",
        ),
        (
            "input_fields { input_name: 'a' input_type: ARRAY_INT64 }",
            "data_config.input_fields: column 'a' is list<item: int64>, which a CSV field cannot "
            "hold; declare it "
            "STRING and give the feature a separator",
        ),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, text, message):
    (tmp_path / "a.csv").write_text("1,2\n")
    with pytest.raises(ConfigError) as error:
        CsvReader(str(tmp_path / "a.csv"), config(text))
    assert str(error.value) == message


def test_a_column_without_values_needs_a_type(tmp_path: Path):
    (tmp_path / "a.csv").write_text("x,y\n1,\n2,\n")
    reader = CsvReader(str(tmp_path / "a.csv"), config())
    reader.check_columns(["x"])
    with pytest.raises(DataError) as error:
        reader.check_columns(["y"])
    assert str(error.value) == (
        "data: column 'y' has no value in the first rows of a.csv, so its type is not known; give it in "
        "data_config.input_fields"
    )


def test_a_truncated_gzip_file(tmp_path: Path):
    data = gzip.compress(b"x\n" + b"".join(b"%d\n" % (i * 7919 % 10007) for i in range(9000)))
    (tmp_path / "a.csv.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError) as error:
        CsvReader(str(tmp_path / "a.csv.gz"), config())
    assert str(error.value) == (
        "data: cannot read a.csv.gz (the file ends before its last gzip member does); it may be "
        "truncated: write it again"
    )


def test_a_damaged_gzip_file(tmp_path: Path):
    data = bytearray(gzip.compress(b"x\n" + b"".join(b"%d\n" % (i * 7919 % 10007) for i in range(9000))))
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "a.csv.gz").write_bytes(bytes(data))
    with pytest.raises(
        DataError, match=r"^data: cannot read a\.csv\.gz \(.*\); it may be truncated: write it again$"
    ):
        CsvReader(str(tmp_path / "a.csv.gz"), config())


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_an_empty_file(tmp_path: Path, name):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError) as error:
        CsvReader(str(tmp_path / name), config())
    assert str(error.value) == f"data: {name} is empty (0 bytes); remove it or write it again"


def test_other_packings_are_refused(tmp_path: Path):
    (tmp_path / "a.csv.bz2").write_bytes(b"x")
    with pytest.raises(DataError, match=r"^data: a\.csv\.bz2 is packed; CSV files may be plain or \.gz$"):
        CsvReader(str(tmp_path / "a.csv.bz2"), config())


def test_a_file_that_changes_while_it_is_read(tmp_path: Path):
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    reader = CsvReader(str(tmp_path / "a.csv"), config())
    (tmp_path / "a.csv").write_text("x\n123456789\n")
    with pytest.raises(DataError, match=r"^data: a\.csv changed while it was read \(1 rows where 2 were\)"):
        read_all(reader)


@pytest.mark.parametrize("header", [True, False])
def test_lines_may_end_with_a_return_alone(tmp_path: Path, header: bool):
    lines = (["x,y"] if header else []) + [f"{i},t{i}" for i in range(60)]
    (tmp_path / "a.csv").write_bytes("\r".join(lines).encode())
    text = f"with_header: {str(header).lower()} input_fields_str: 'x:INT64;y:STRING'"
    reader = CsvReader(str(tmp_path / "a.csv"), config(text))
    assert read_all(reader)["x"].to_pylist() == list(range(60))
    assert len(reader.fragments) > 1


def test_a_return_inside_a_line_ends_it(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(b"x,y\n1,a\rb\n2,c\n")
    reader = CsvReader(
        str(tmp_path / "a.csv"), config("with_header: true input_fields_str: 'x:INT64;y:STRING'")
    )
    (block,) = (block for item in reader.fragments for block in reader.read(item, ["x", "y"]))
    assert block.table.to_pydict() == {"x": [1, None, 2], "y": ["a", None, "c"]}
    (bad,) = block.bad
    assert (bad.row, bad.reason) == (1, "the line has 1 fields where 2 are expected: {value}")


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("encoding", "found"),
    [
        ("utf-16", "is UTF-16; save it as UTF-8"),
        (
            "utf-16-be",
            "is not UTF-8 but perhaps UTF-16 (it has bytes of 0 among its first letters); save it as UTF-8",
        ),
        ("utf-32", "is UTF-32; save it as UTF-8"),
    ],
)
def test_wide_text_is_refused(tmp_path: Path, encoding: str, found: str, zipped: bool):
    name = "a.csv.gz" if zipped else "a.csv"
    data = "x,prénom\n1,é\n".encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(data) if zipped else data)
    with pytest.raises(DataError) as error:
        CsvReader(str(tmp_path / name), config())
    assert str(error.value) == f"data: {name} {found}"


def test_a_header_that_is_not_utf8_is_refused(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes("x,prénom\n1,2\n".encode("latin-1"))
    with pytest.raises(DataError) as error:
        CsvReader(str(tmp_path / "a.csv"), config())
    assert str(error.value) == (
        "data: the header of a.csv is not UTF-8 (byte 0xE9 in 'x,pr\\xe9nom\\n'); save the file as UTF-8"
    )
