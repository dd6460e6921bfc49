from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import text_format

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.readers.parquet import ParquetReader
from recgrad.errors import DataError

CONFIG = text_format.Parse("dataset_type: ParquetDataset", DataConfig())
CAT = """
feature_configs { id_feature { feature_name: "cat" expression: "item:cat" embedding_dim: 4 num_buckets: 9 } }
"""


def test_large_row_groups_are_read_piece_by_piece(tmp_path: Path, open_loader):
    table = pa.table({"id": np.arange(300_000), "cat": np.arange(300_000) % 9})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=300_000)
    reader = ParquetReader(str(tmp_path / "a.parquet"), CONFIG)
    blocks = list(reader.read(reader.fragments[0], ["id"]))
    assert max(block.table.num_rows for block in blocks) <= 65_536
    text = "batch_size: 5000 num_workers: 2 shuffle: true shuffle_buffer_size: 4"
    path = str(tmp_path / "a.parquet")
    loader = open_loader(path, text, features=CAT)
    whole = [rows["id"].to_pylist() for _, rows in loader.epoch_with_rows()]
    assert sorted(i for batch in whole for i in batch) == list(range(300_000))
    batches = loader.epoch_with_rows()
    list(islice(batches, 37))
    position = loader.position
    batches.close()
    rest = [
        rows["id"].to_pylist()
        for _, rows in open_loader(path, text, features=CAT).epoch_with_rows(0, position)
    ]
    assert rest == whole[37:]


def test_any_fsspec_file_system(open_loader, make_rows):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.mkdirs("/set/day=1", exist_ok=True)
    for name, start in (("/set/day=1/a.parquet", 0), ("/set/b.parquet", 30)):
        with memory.open(name, "wb") as file:
            pq.write_table(make_rows(30, start=start), file)
    for path in ("memory://set", "memory://set/b.parquet,memory://set/day=1/*.parquet"):
        loader = open_loader(path, "batch_size: 7 num_workers: 2")
        ids = [i for _, rows in loader.epoch_with_rows() for i in rows["id"].to_pylist()]
        assert sorted(ids) == list(range(60))
        assert loader._reader.files == ("b.parquet", "day=1/a.parquet")
    memory.rm("/set", recursive=True)


def test_dictionaries_are_read_as_such_only_where_they_hold_the_column(tmp_path: Path):
    rng = np.random.default_rng(0)
    few = pa.array([f"word {i}" for i in rng.integers(0, 50, 100_000)])
    many = pa.array([f"{i:040d}" for i in range(100_000)])
    pq.write_table(pa.table({"few": few, "many": many, "number": np.arange(100_000)}), tmp_path / "a.parquet")
    reader = ParquetReader(str(tmp_path / "a.parquet"), CONFIG)
    assert reader.coded_columns == {"few"}
    (block,) = reader.read(reader.fragments[0], ["few", "many"])
    assert block.table["few"].combine_chunks().dictionary_decode() == few
    assert block.table["many"].combine_chunks() == many


def test_carried_texts_come_as_texts(write_rows, open_loader):
    loader = open_loader(write_rows([40]), "batch_size: 9 num_workers: 1", carry_columns=("tags", "id"))
    for _, rows in loader.epoch_with_rows():
        assert rows.schema.types == [pa.string(), pa.int64()]


def test_texts_are_the_same_in_every_shape_of_batches(write_rows, open_loader, make_rows):
    """Batches inside a row group, over its border, shuffled, and cut by cost take different ways."""
    path = write_rows([400], row_group_size=64)
    expected: dict[int, list[int]] = {}
    for text in (
        "batch_size: 400",
        "batch_size: 7",
        "batch_size: 7 shuffle: true shuffle_buffer_size: 3",
        "batch_size: 64 shuffle: true shuffle_buffer_size: 3 batch_cost_size: 100 sample_cost_field: 'cost'",
    ):
        got: dict[int, list[int]] = {}
        for batch, rows in open_loader(path, text + " num_workers: 2").epoch_with_rows():
            ids = batch.sparse["tags"].values.split(batch.sparse["tags"].lengths.tolist())
            got.update({row: item.tolist() for row, item in zip(rows["id"].to_pylist(), ids, strict=True)})
        expected = expected or got
        assert got == expected
    assert len(expected) == 400


def test_declared_types_must_be_those_of_the_file(write_rows, open_loader):
    path = write_rows([10])
    open_loader(path, "input_fields { input_name: 'cat' input_type: INT64 } input_fields { input_name: 'x' }")
    with pytest.raises(DataError) as error:
        open_loader(path, "input_fields { input_name: 'cat' input_type: STRING }")
    assert str(error.value) == (
        "data: column 'cat' is int64 in part-0.parquet, but string in data_config.input_fields; correct it "
        "there, or leave the type out"
    )


@pytest.mark.parametrize("rows", [3, 20, 30], ids=["fewer", "as many", "more"])
def test_a_file_that_is_replaced_between_two_row_groups_is_named(tmp_path: Path, rows: int):
    path = tmp_path / "a.parquet"
    plain = {"row_group_size": 5, "compression": "none", "use_dictionary": False}
    pq.write_table(pa.table({"id": np.arange(20)}), path, **plain)
    size = path.stat().st_size
    reader = ParquetReader(str(path), CONFIG)
    first, second = reader.fragments[:2]
    assert next(reader.read(first, ["id"])).table.num_rows == 5
    pq.write_table(pa.table({"id": np.arange(rows) + 100}), path, **plain)
    assert (path.stat().st_size == size) == (rows == 20)
    how = "same size, other content" if rows == 20 else f"{size} bytes then, {path.stat().st_size} now"
    with pytest.raises(DataError, match=rf"a\.parquet was replaced while it was read \({how}\); put the old"):
        next(reader.read(second, ["id"]))
