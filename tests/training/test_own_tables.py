"""`recgrad.train` on rows in memory: the same run as on files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.config import PipelineConfig, load_config
from recgrad.errors import DataError, RecgradError
from recgrad.synth import write_synth
from recgrad.training.checkpoint import diff_snapshots, read_checkpoint, resolve_checkpoint

ROWS = 1_500


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[PipelineConfig, Path]:
    folder = tmp_path_factory.mktemp("tables")
    write_synth(folder, ROWS, eval_rows=300, seed=2)
    config = load_config(folder / "deepfm.config")
    config.data_config.batch_size = 256
    config.model_dir = str(folder / "model")
    recgrad.train(config)
    return config, folder


def kinds(table: pa.Table) -> dict[str, Any]:
    """A table in each form that users have."""
    polars = pytest.importorskip("polars")
    pytest.importorskip("pandas")
    return {"arrow": table, "pandas": table.to_pandas(), "polars": polars.from_arrow(table)}


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
def test_rows_in_memory_train_the_model_that_files_do(
    files: tuple[PipelineConfig, Path], tmp_path: Path, kind: str
) -> None:
    config, folder = files
    train = kinds(pq.read_table(folder / "train.parquet"))[kind]
    held_out = kinds(pq.read_table(folder / "eval.parquet"))[kind]
    result = recgrad.train(config, train_input_path=train, eval_input_path=held_out, model_dir=tmp_path)
    by_files = read_checkpoint(resolve_checkpoint(folder / "model"))
    by_rows = read_checkpoint(resolve_checkpoint(tmp_path))
    compared = {item.name: item.equal for item in diff_snapshots(by_files, by_rows)}
    weights = {name: equal for name, equal in compared.items() if not name.startswith("state")}
    assert len(weights) > 5
    assert all(weights.values()), weights
    stored = sorted(path.name.partition("-")[0] for path in (tmp_path / "data").iterdir())
    assert stored == ["eval", "train"]
    # What was kept serves the run like any other's files.
    assert recgrad.evaluate(str(tmp_path))["auc"] == pytest.approx(result.metrics["auc"], abs=1e-9)
    more = recgrad.train(
        str(tmp_path),
        train_input_path=train,
        eval_input_path=held_out,
        continue_train=True,
        edit_config_json={"train_config.num_epochs": 2},
    )
    assert more.step > result.step


def test_a_config_of_csv_files_takes_rows_in_memory(
    files: tuple[PipelineConfig, Path], tmp_path: Path
) -> None:
    config = load_config(files[0])
    config.data_config.dataset_type = 3
    train = pq.read_table(files[1] / "train.parquet")
    recgrad.train(config, train_input_path=train, eval_input_path=train, model_dir=tmp_path / "model")
    assert load_config(tmp_path / "model").data_config.dataset_type == 2
    config.eval_input_path = "eval.csv"
    with pytest.raises(RecgradError, match=r"'eval\.csv' is read as CsvDataset.*give both in memory"):
        recgrad.train(config, train_input_path=train, model_dir=tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (3.5, "train_input_path: cannot be read as a table .got builtins.float.; give a pandas"),
        ({"a": [1, "x"]}, "train_input_path: cannot be read as a table"),
        ([1, 2], "a row is int, not a dict"),
        ({"a": [None, None]}, "column 'a' has no value at all"),
        ({"a": []}, "has no"),
        ({"a": [1], "b": [1, 2]}, "train_input_path: cannot be read as a table"),
    ],
)
def test_what_is_no_table_is_refused_before_anything_is_written(
    files: tuple[PipelineConfig, Path], tmp_path: Path, rows: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        recgrad.train(files[0], train_input_path=rows, model_dir=tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_missing_column_is_told(files: tuple[PipelineConfig, Path], tmp_path: Path) -> None:
    table = pq.read_table(files[1] / "train.parquet").drop_columns(["label"])
    with pytest.raises(DataError, match="column 'label' is not in train-"):
        recgrad.train(files[0], train_input_path=table, model_dir=tmp_path / "model")
