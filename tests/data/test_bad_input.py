"""Every bad input gives one error that names file, row, column and value, and what to do."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recgrad.data import Batch
from recgrad.errors import DataError

TEXT = "batch_size: 8 num_workers: 1 label_fields: 'label'"


def put(table: pa.Table, name: str, row: int, value: object) -> pa.Table:
    values = table[name].to_pylist()
    values[row] = value
    return table.set_column(table.schema.get_field_index(name), name, pa.array(values, table[name].type))


@pytest.fixture
def bad_file(tmp_path: Path, make_rows):
    """A parquet file of 40 rows with one value changed; row groups of 10."""

    def write(name: str, row: int, value: object, **types: pa.DataType) -> str:
        table = make_rows(40)
        for column, kind in types.items():
            table = table.set_column(table.schema.get_field_index(column), column, table[column].cast(kind))
        pq.write_table(put(table, name, row, value), tmp_path / "bad.parquet", row_group_size=10)
        return str(tmp_path / "bad.parquet")

    return write


def deplete(batches: Iterator[Batch], sizes: list[int]) -> None:
    """Note the size of each batch as it comes."""
    for batch in batches:
        sizes.append(batch.size)


def error_of(open_loader, path: str, text: str = TEXT, **kwargs: object) -> str:
    with pytest.raises(DataError) as error:
        list(open_loader(path, text, **kwargs).epoch())
    return str(error.value)


def test_missing_column(tmp_path: Path, make_rows, open_loader):
    table = make_rows(20)
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table.drop_columns(["cat"]), tmp_path / "b.parquet")
    assert error_of(open_loader, str(tmp_path)) == (
        "data: column 'cat' is not in b.parquet (has: id, label, weight, user, price, tags, clicks, cost)"
    )


def test_missing_label_with_a_near_name(write_rows, open_loader):
    assert error_of(open_loader, write_rows([20]), TEXT.replace("'label'", "'lable'")) == (
        "data: column 'lable' is not in part-0.parquet "
        "(has: id, label, weight, user, price, cat, tags, clicks, cost); did you mean 'label'?"
    )


def test_wrong_type(tmp_path: Path, make_rows, open_loader):
    table = make_rows(20)
    dates = pa.array([0] * 20, pa.timestamp("s"))
    pq.write_table(table.set_column(4, "price", dates), tmp_path / "a.parquet")
    message = error_of(open_loader, str(tmp_path / "a.parquet"))
    assert "price" in message
    assert "timestamp" in message


def test_wrong_type_of_label_weight_and_key(write_rows, open_loader):
    path = write_rows([20])
    assert error_of(open_loader, path, "label_fields: 'user'") == (
        "data: label 'user' is string in part-0.parquet, and a label is a number; write numbers, or say in "
        "data_config.positive_labels which texts count as 1, in label_classes which are classes"
    )
    assert error_of(open_loader, path, "sample_weight_fields: 'user'") == (
        "data: sample weight 'user' is string in part-0.parquet; it must be a number"
    )
    model = "losses { jrc_loss { session_name: 'price' } }"
    assert error_of(open_loader, path, TEXT, model=model) == (
        "data: key 'price' is float in part-0.parquet; it must be an integer or a string"
    )


def test_null_label(bad_file, open_loader):
    assert error_of(open_loader, bad_file("label", 23, None)) == (
        "label label: the label is null (column 'label', row 23 of bad.parquet); give every row a "
        "label, or leave "
        "such rows out"
    )


def test_null_weight_and_key(bad_file, open_loader):
    text = TEXT + " sample_weight_fields: 'weight'"
    assert (
        "sample weight weight: the sample weight is null (column 'weight', row 5 of bad.parquet)"
        in error_of(open_loader, bad_file("weight", 5, None), text)
    )
    model = "losses { jrc_loss { session_name: 'user' } }"
    assert "key user: the key is null (column 'user', row 6 of bad.parquet)" in error_of(
        open_loader, bad_file("user", 6, None), TEXT, model=model
    )


@pytest.mark.parametrize(("value", "shown"), [(2, "2"), (-1, "-1")])
def test_label_outside_0_and_1(bad_file, open_loader, value, shown):
    assert error_of(open_loader, bad_file("label", 23, value)) == (
        f"label label: label {shown} is neither 0 nor 1 (column 'label', row 23 of bad.parquet); "
        "correct the label, or say which values count as 1: "
        f'data_config {{ positive_labels {{ label_field: "label" values: "{max(value, 1)}" }} }}'
    )


def with_labels(make_rows, path: Path, labels: pa.Array) -> str:
    table = make_rows(len(labels))
    at = table.schema.get_field_index("label")
    pq.write_table(table.set_column(at, "label", labels), path / "labels.parquet")
    return str(path / "labels.parquet")


@pytest.mark.parametrize(
    ("labels", "values", "want"),
    [
        (pa.array([-1, 1, -1, 1]), ["1"], [0, 1, 0, 1]),
        (pa.array([1, 2, 2, 1], pa.int8()), ["2"], [0, 1, 1, 0]),
        (pa.array([1, 4, 5, 3], pa.uint64()), ["4", "5"], [0, 1, 1, 0]),
        (pa.array([-1.0, 1.0, 0.5, 1.0]), ["1", "0.5"], [0, 1, 1, 1]),
        (pa.array([-1.0, 1.0], pa.float32()), ["1.0"], [0, 1]),
        (pa.array([True, False]), ["false"], [0, 1]),
        (pa.array([2**53, 2**53 + 1]), [str(2**53 + 1)], [0, 1]),
    ],
)
def test_numbers_that_count_as_1(make_rows, tmp_path: Path, open_loader, labels, values, want):
    text = TEXT + f" positive_labels {{ label_field: 'label' values: {values} }}"
    loader = open_loader(with_labels(make_rows, tmp_path, labels), text)
    got = {
        row: label
        for batch in loader.epoch()
        for row, label in zip(batch.origin.row.tolist(), batch.labels["label"].tolist(), strict=True)
    }
    assert [got[row] for row in range(len(want))] == want


def test_positive_labels_that_fit_no_number(make_rows, tmp_path: Path, open_loader):
    text = TEXT + " positive_labels { label_field: 'label' values: 'yes' }"
    path = with_labels(make_rows, tmp_path, pa.array([0, 1]))
    assert error_of(open_loader, path, text) == (
        "data: label 'label' is int64 in labels.parquet, but 'yes' of its positive_labels is no number; "
        "write the numbers that count as 1"
    )
    path = with_labels(make_rows, tmp_path, pa.array([1.0, float("nan")]))
    assert "nan is not a finite number" in error_of(open_loader, path, text.replace("yes", "1"))


def test_label_and_weight_beyond_a_signed_integer(bad_file, open_loader):
    path = bad_file("label", 23, 2**63 + 5, label=pa.uint64())
    assert error_of(open_loader, path).startswith(
        "label label: label 9.223372036854776e+18 is neither 0 nor 1 (column 'label', row 23 of bad.parquet)"
    )
    loader = open_loader(path, TEXT + " sample_weight_fields: 'label'", model="losses { l2_loss {} }")
    batch = next(batch for batch in loader.epoch() if 23 in batch.origin.row)
    row = batch.origin.row.tolist().index(23)
    assert batch.labels["label"][row] == batch.sample_weights["label"][row] == 2.0**63


def test_label_is_free_where_the_loss_takes_it(bad_file, open_loader):
    loader = open_loader(bad_file("label", 23, 7), TEXT, model="losses { l2_loss {} }")
    assert sum(batch.size for batch in loader.epoch()) == 40


def test_label_of_a_tower_and_of_classes(bad_file, open_loader):
    tower = """mmoe { expert_mlp {} num_expert: 1 task_towers {
      tower_name: 't' label_name: 'label' num_class: 3 losses { softmax_cross_entropy {} } } }"""
    assert "label 3 is not a class from 0 to 2 (column 'label', row 9" in error_of(
        open_loader, bad_file("label", 9, 3), TEXT, model=tower
    )
    binary = tower.replace("softmax_cross_entropy", "binary_focal_loss")
    assert "label 2 is neither 0 nor 1 (column 'label', row 9" in error_of(
        open_loader, bad_file("label", 9, 2), TEXT, model=binary
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_inf(bad_file, open_loader, value):
    message = error_of(open_loader, bad_file("price", 17, value))
    assert message.startswith(
        f"feature price: {value} is not a finite number (column 'price', row 17 of bad.parquet); "
    )
    weights = error_of(open_loader, bad_file("weight", 17, value), TEXT + " sample_weight_fields: 'weight'")
    assert weights.startswith(
        f"sample weight weight: {value} is not a finite number (column 'weight', row 17"
    )
    label = error_of(
        open_loader, bad_file("label", 3, value, label=pa.float64()), model="losses { l2_loss {} }"
    )
    assert label.startswith(
        f"label label: {value} is not a finite number (column 'label', row 3 of bad.parquet); "
    )


def test_negative_weight(bad_file, open_loader):
    text = TEXT + " sample_weight_fields: 'weight'"
    assert error_of(open_loader, bad_file("weight", 4, -0.5), text) == (
        "sample weight weight: weight -0.5 is negative (column 'weight', row 4 of bad.parquet); "
        "weights are 0 or more"
    )


@pytest.mark.parametrize("value", [100, -3])
def test_id_out_of_range(bad_file, open_loader, value):
    message = error_of(open_loader, bad_file("cat", 31, value))
    assert message.startswith("feature cat: ")
    assert f"{value}" in message
    assert "(column 'cat', row 31 of bad.parquet); " in message


def test_id_out_of_range_in_a_sequence(bad_file, open_loader):
    message = error_of(open_loader, bad_file("clicks", 12, [5, 100, 6]))
    assert message.startswith("feature clicks: ")
    assert "100" in message
    assert "(column 'clicks', row 12 of bad.parquet); " in message


def test_ragged_vectors(tmp_path: Path, make_rows, open_loader):
    raw = 'raw_feature { feature_name: "vector" expression: "item:vector" value_dim: 3 }'
    features = f"feature_configs {{ {raw} }}"
    vectors = pa.array([[1.0, 2.0, 3.0]] * 19 + [[1.0, 2.0]], pa.list_(pa.float32()))
    pq.write_table(make_rows(20).append_column("vector", vectors), tmp_path / "a.parquet")
    message = error_of(open_loader, str(tmp_path / "a.parquet"), features=features)
    assert message.startswith(
        "feature vector: has 2 values, not value_dim 3 (column 'vector', row 19 of a.parquet); "
    )


@pytest.mark.parametrize("cost", [0, -1, 61, None])
def test_costs_that_no_batch_can_hold(bad_file, open_loader, cost):
    text = TEXT + " batch_cost_size: 60 sample_cost_field: 'cost'"
    shown = "nan" if cost is None else f"{float(cost)}"
    assert error_of(open_loader, bad_file("cost", 11, cost), text) == (
        f"sample cost cost: cost {shown} is not above 0 and at most batch_cost_size 60 (column "
        "'cost', row 11 of "
        "bad.parquet); correct the cost, or raise data_config.batch_cost_size"
    )


@pytest.mark.parametrize(("name", "kind"), [("user", "string"), ("clicks", "list<element: int64>")])
def test_costs_that_are_no_numbers(write_rows, open_loader, name, kind):
    text = TEXT + f" batch_cost_size: 60 sample_cost_field: '{name}'"
    assert error_of(open_loader, write_rows([20]), text) == (
        f"data: sample cost '{name}' is {kind} in part-0.parquet; it must be a number"
    )


def test_truncated_file(write_rows, open_loader):
    path = Path(write_rows([200])) / "part-0.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    message = error_of(open_loader, str(path))
    assert message.startswith("data: part-0.parquet is not a readable parquet file (")
    assert message.endswith("); it may be truncated: write it again")


def test_file_damaged_in_the_middle(write_rows, open_loader):
    path = Path(write_rows([200, 5000], row_group_size=1000)) / "part-1.parquet"
    data = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(2).column(5).data_page_offset
    data[start : start + 3000] = bytes(3000)
    path.write_bytes(bytes(data))
    message = error_of(open_loader, str(path.parent))
    assert message.startswith("data: cannot read rows 2000 to 2999 of part-1.parquet (")
    assert message.endswith("); the file is damaged or changed while it was read: write it again")


def test_batches_before_the_damage_are_delivered(write_rows, open_loader):
    path = Path(write_rows([12_000], row_group_size=4000)) / "part-0.parquet"
    data = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(2).column(5).data_page_offset
    data[start : start + 3000] = bytes(3000)
    path.write_bytes(bytes(data))
    for workers in (0, 1, 4):
        loader = open_loader(str(path), f"batch_size: 4000 num_workers: {workers}")
        sizes: list[int] = []
        with pytest.raises(DataError):
            deplete(loader.epoch(), sizes)
        # Two batches are encoded at once, and the third can never be complete.
        assert len(sizes) == 2


def test_empty_file(write_rows, open_loader):
    path = Path(write_rows([20]))
    (path / "part-9.parquet").write_bytes(b"")
    assert error_of(open_loader, str(path)) == (
        "data: part-9.parquet is empty (0 bytes); remove it or write it again"
    )


def test_not_parquet_at_all(tmp_path: Path, open_loader):
    (tmp_path / "a.parquet").write_text("just text, no footer anywhere")
    assert error_of(open_loader, str(tmp_path)).startswith("data: a.parquet is not a readable parquet file (")


def test_different_schemas(tmp_path: Path, make_rows, open_loader):
    table = make_rows(20)
    pq.write_table(table, tmp_path / "a.parquet")
    index = table.schema.get_field_index("cat")
    pq.write_table(table.set_column(index, "cat", table["cat"].cast(pa.string())), tmp_path / "b.parquet")
    assert error_of(open_loader, str(tmp_path)) == (
        "data: column 'cat' is string in b.parquet but int64 in a.parquet; write both files with one type"
    )
    # Columns that nobody asked for may differ.
    other = table.set_column(index, "cat", table["cat"])
    other = other.set_column(table.schema.get_field_index("user"), "user", table["id"])
    pq.write_table(other, tmp_path / "b.parquet")
    assert sum(batch.size for batch in open_loader(str(tmp_path), TEXT).epoch()) == 40


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing.parquet", "data: no file '{}'; check the path"),
        ("*.parquet", "data: no file matches '{}'; check the path and the pattern"),
        ("empty", "data: folder '{}' has no file that ends in .parquet or .parq or .pq"),
    ],
)
def test_nothing_to_read(tmp_path: Path, open_loader, path, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").write_text("")
    assert error_of(open_loader, str(tmp_path / path)) == message.format(tmp_path / path)


def test_nothing_asked_for(open_loader):
    assert error_of(open_loader, " , ") == "data: input path ' , ' is empty; give a file, a glob or a folder"


# Skipping.


def test_skip_counts_by_reason_and_logs_the_first(write_rows, open_loader, caplog):
    cats = np.arange(1000) % 100
    cats[[5, 7, 900]] = 123
    labels = np.zeros(1000, np.int64)
    labels[[7, 8]] = 5
    path = write_rows([1000], cat=pa.array(cats), label=pa.array(labels))
    loader = open_loader(path, "batch_size: 50 num_workers: 2 label_fields: 'label' on_bad_row: SKIP")
    with caplog.at_level(logging.WARNING, "recgrad.data"):
        rows = [i for _, carried in loader.epoch_with_rows() for i in carried["id"].to_pylist()]
    assert rows == [i for i in range(1000) if i not in (5, 7, 8, 900)]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 4
    assert messages[0].startswith("skipping a bad row: feature cat: ")
    assert "(column 'cat', row 5 of part-0.parquet)" in messages[0]
    assert messages[1].startswith(
        "skipping a bad row: label label: label 5 is neither 0 nor 1 (column 'label', row 7"
    )
    assert messages[2].startswith("skipped 3 bad rows: cat: ")
    assert messages[3].startswith("skipped 2 bad rows: label label: label … is neither 0 nor 1")
    assert loader.position.bad_rows == 4


def test_too_many_bad_rows_stop_the_run(write_rows, open_loader):
    cats = np.arange(1000) % 100
    cats[::50] = 123
    path = write_rows([1000], cat=pa.array(cats))
    loader = open_loader(path, "batch_size: 50 num_workers: 1 on_bad_row: SKIP")
    with pytest.raises(DataError) as error:
        list(loader.epoch())
    assert str(error.value).startswith(
        "data: 20 of 1000 rows are bad, more than data_config.max_bad_row_ratio 0.01 (20 × cat: "
    )
    assert str(error.value).endswith("); correct the data, or raise the ratio")


def test_too_many_bad_rows_are_noticed_early(write_rows, open_loader):
    cats = np.arange(30_000) % 100
    cats[::10] = 123
    path = write_rows([30_000], row_group_size=5000, cat=pa.array(cats))
    loader = open_loader(path, "batch_size: 500 num_workers: 1 on_bad_row: SKIP")
    sizes: list[int] = []
    with pytest.raises(DataError, match="1000 of 10000 rows are bad"):
        deplete(loader.epoch(), sizes)
    assert 0 < sum(sizes) < 10_000


def test_a_batch_of_bad_rows_alone_is_passed_over(write_rows, open_loader):
    cats = np.arange(64) % 100
    cats[16:24] = 123
    cats[24:31] = 123
    path = write_rows([64], cat=pa.array(cats))
    text = "batch_size: 8 num_workers: 1 on_bad_row: SKIP max_bad_row_ratio: 0.5"
    sizes = [batch.size for batch in open_loader(path, text).epoch()]
    assert sum(sizes) == 64 - 15
    assert min(sizes) > 1
    ranks = [[b.size for b in open_loader(path, text, rank=r, world_size=2).epoch()] for r in range(2)]
    assert [len(sizes) for sizes in ranks] == [4, 4]


@pytest.mark.parametrize(("ratio", "bad", "rows"), [("0.01", 30, 3000), ("0.29", 29, 100), ("0.07", 7, 100)])
def test_exactly_the_largest_share_of_bad_rows_passes(write_rows, open_loader, ratio, bad, rows):
    cats = np.arange(rows) % 100
    cats[:bad] = 123
    text = f"batch_size: 50 num_workers: 1 on_bad_row: SKIP max_bad_row_ratio: {ratio}"
    loader = open_loader(write_rows([rows], cat=pa.array(cats)), text)
    assert sum(batch.size for batch in loader.epoch()) == rows - bad
    cats[bad] = 123
    loader = open_loader(write_rows([rows], cat=pa.array(cats)), text)
    with pytest.raises(DataError, match=f"{bad + 1} of {rows} rows are bad, more than .* {ratio} "):
        list(loader.epoch())


@pytest.mark.parametrize(
    ("labels", "values", "want"),
    [
        (pa.array(["b ", "a", "c"]), ["a", "b", " c"], [1, 0, 2]),
        (pa.array(["b", "a"]).dictionary_encode(), ["a", "b"], [1, 0]),
        (pa.array([10, 30, 20], pa.int32()), ["10", "20", "30"], [0, 2, 1]),
        (pa.array([1, 2]), ["0.5", "2", "1"], [2, 1]),
        (pa.array([0.5, 1.0]), ["1", "0.5"], [1, 0]),
        (pa.array([True, False]), ["true", "false"], [0, 1]),
    ],
    ids=str,
)
def test_values_that_are_classes(make_rows, tmp_path: Path, open_loader, labels, values, want):
    text = f"label_fields: 'label' label_classes {{ label_field: 'label' values: {values} }}"
    loader = open_loader(with_labels(make_rows, tmp_path, labels), text)
    got = {
        row: label
        for batch in loader.epoch()
        for row, label in zip(batch.origin.row.tolist(), batch.labels["label"].tolist(), strict=True)
    }
    assert [got[row] for row in range(len(want))] == want


def test_values_that_are_no_class(make_rows, tmp_path: Path, open_loader):
    text = "label_fields: 'label' label_classes { label_field: 'label' values: ['a', 'b'] }"
    path = with_labels(make_rows, tmp_path, pa.array(["a", "b", "x"]))
    assert error_of(open_loader, path, text) == (
        "label label: label 'x' is none of its 2 classes (column 'label', row 2 of labels.parquet); correct "
        "the label, or add the class to data_config.label_classes and one to num_class"
    )
    path = with_labels(make_rows, tmp_path, pa.array(["a", None]))
    assert "label label: the label is null" in error_of(open_loader, path, text)
    path = with_labels(make_rows, tmp_path, pa.array([0, 1]))
    assert error_of(open_loader, path, text) == (
        "data: label 'label' is int64 in labels.parquet, but 'a' of its label_classes is no number; "
        "write the numbers of the classes"
    )
