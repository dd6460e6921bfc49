from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from recgrad.data import build_features
from recgrad.data.check import check_data
from recgrad.models.targets import find_targets


@pytest.fixture
def check(make_config):
    def run(train: Path, evaluation: Path | None = None, text: str = "label_fields: 'label'", **kwargs: int):
        config = make_config(f"{text} fg_mode: FG_DAG")
        config.train_input_path = str(train)
        config.eval_input_path = str(evaluation or train)
        features = build_features(config.feature_configs, fg_mode="FG_DAG", multival_sep="\x03")
        return [str(problem) for problem in check_data(config, features, find_targets(config), **kwargs)]

    return run


def test_good_data_have_no_problems(check, make_rows, tmp_path: Path):
    pq.write_table(make_rows(100), tmp_path / "a.parquet")
    assert check(tmp_path / "a.parquet") == []


def test_all_missing_columns_are_reported_at_once(check, make_rows, tmp_path: Path):
    pq.write_table(make_rows(10).drop_columns(["price", "cat", "label"]), tmp_path / "a.parquet")
    problems = check(tmp_path / "a.parquet")
    assert [problem.partition(" is not in")[0] for problem in problems] == [
        "train_input_path: data: column 'price'",
        "train_input_path: data: column 'cat'",
        "train_input_path: data: column 'label'",
    ]


def test_both_datasets_are_looked_at(check, make_rows, tmp_path: Path):
    pq.write_table(make_rows(10), tmp_path / "a.parquet")
    problems = check(tmp_path / "a.parquet", tmp_path / "missing.parquet")
    assert problems == [f"eval_input_path: data: no file '{tmp_path}/missing.parquet'; check the path"]


def test_ids_out_of_range_in_a_sample_of_the_first_and_the_last_rows(check, make_rows, tmp_path: Path):
    import pyarrow as pa

    table = make_rows(100)
    cats, labels = table["cat"].to_pylist(), table["label"].to_pylist()
    cats[3], cats[95], labels[92] = 777, 888, 3
    table = table.set_column(table.schema.get_field_index("cat"), "cat", pa.array(cats))
    table = table.set_column(table.schema.get_field_index("label"), "label", pa.array(labels))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    problems = check(tmp_path / "a.parquet")
    assert len(problems) == 2
    assert problems[0].startswith("train_input_path: feature cat: id 777 is outside num_buckets 100")
    assert "(column 'cat', row 3 of a.parquet)" in problems[0]
    assert problems[1].startswith(
        "train_input_path: label label: label 3 is neither 0 nor 1 (column 'label', row 92"
    )
    assert len(check(tmp_path / "a.parquet", sample_rows=4)) == 0
    assert check(tmp_path / "a.parquet", text="label_fields: 'label' on_bad_row: SKIP") == []


def test_declared_types_and_costs_are_looked_at(check, make_rows, tmp_path: Path):
    pq.write_table(make_rows(10), tmp_path / "a.parquet")
    declared = "label_fields: 'label' input_fields { input_name: 'cat' input_type: STRING }"
    (problem,) = check(tmp_path / "a.parquet", text=declared)
    assert problem.startswith(
        "train_input_path: data: column 'cat' is int64 in a.parquet, but string in data_config"
    )
    cost = "label_fields: 'label' batch_cost_size: 9 sample_cost_field:"
    (problem,) = check(tmp_path / "a.parquet", text=f"{cost} 'cots'")
    assert problem.startswith("train_input_path: data: column 'cots' is not in a.parquet")
    assert problem.endswith("; did you mean 'cost'?")
    assert check(tmp_path / "a.parquet", text=f"{cost} 'user'") == [
        "train_input_path: data: sample cost 'user' is string in a.parquet; it must be a number"
    ]
    assert check(tmp_path / "a.parquet", text=f"{cost} 'cost'") == []


def test_wrong_types(check, make_rows, tmp_path: Path):
    pq.write_table(make_rows(10), tmp_path / "a.parquet")
    assert check(tmp_path / "a.parquet", text="label_fields: 'user'") == [
        "train_input_path: data: label 'user' is string in a.parquet, and a label is a number; write "
        "numbers, or say "
        "in data_config.positive_labels which texts count as 1, in label_classes which are classes"
    ]
