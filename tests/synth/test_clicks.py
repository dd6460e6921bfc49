"""The synthetic data: reproducible, shaped as promised, and as learnable as it says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from recgrad.synth import clicks as synth


def digest(folder: Path, name: str) -> str:
    return hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        synth.write_synth(tmp_path / name, 5_000, eval_rows=1_000, seed=seed)
    assert digest(tmp_path / "a", "train.parquet") == digest(tmp_path / "b", "train.parquet")
    assert digest(tmp_path / "a", "eval.parquet") == digest(tmp_path / "b", "eval.parquet")
    assert digest(tmp_path / "a", "train.parquet") != digest(tmp_path / "c", "train.parquet")


def test_rows_do_not_depend_on_how_many_are_written(tmp_path: Path) -> None:
    synth.write_synth(tmp_path / "short", synth.BLOCK_ROWS, eval_rows=100)
    synth.write_synth(tmp_path / "long", synth.BLOCK_ROWS + 1_000, eval_rows=100)
    short = pq.read_table(tmp_path / "short/train.parquet")
    long = pq.read_table(tmp_path / "long/train.parquet")
    assert long.slice(0, synth.BLOCK_ROWS).equals(short)
    assert long.num_rows == synth.BLOCK_ROWS + 1_000


def test_columns_are_criteo_shaped_with_ids_in_range_and_nulls(tmp_path: Path) -> None:
    synth.write_synth(tmp_path, 20_000, eval_rows=100)
    table = pq.read_table(tmp_path / "train.parquet")
    for column in range(13):
        values = table[f"int_{column}"]
        assert (values.null_count > 0) == (column in synth.NULL_NUMERICS)
    for column, size in enumerate(synth.CATEGORY_SIZES):
        ids = table[f"cat_{column}"]
        assert (ids.null_count > 0) == (column in synth.NULL_CATEGORIES)
        values = ids.drop_null().to_numpy()
        assert values.min() >= 0
        assert values.max() < size
    lengths = np.diff(table["click_seq"].combine_chunks().offsets.to_numpy())
    assert lengths.min() == 0
    assert lengths.max() == synth.MAX_SEQUENCE
    clicks, conversions = table["label"].to_numpy(), table["conversion"].to_numpy()
    assert conversions.sum() > 0
    assert not np.any(conversions[clicks == 0])


def test_ids_are_skewed_like_zipf(tmp_path: Path) -> None:
    synth.write_synth(tmp_path, 50_000, eval_rows=100)
    ids = pq.read_table(tmp_path / "train.parquet")["cat_0"].to_numpy()
    counts = np.sort(np.bincount(ids))[::-1]
    assert counts[0] > 0.1 * len(ids)
    assert np.count_nonzero(counts) > 1_000


def test_csv_holds_the_same_rows(tmp_path: Path) -> None:
    synth.write_synth(tmp_path, 1_000, eval_rows=100)
    synth.write_synth(tmp_path, 1_000, eval_rows=100, file_format="csv")
    parquet = pq.read_table(tmp_path / "train.parquet")
    csv = pyarrow.csv.read_csv(tmp_path / "train.csv")
    assert csv.column_names == parquet.column_names
    assert csv["cat_0"].to_pylist() == parquet["cat_0"].to_pylist()
    expected = ["|".join(map(str, row)) for row in parquet["click_seq"].to_pylist()]
    assert csv["click_seq"].to_pylist() == expected


def test_the_best_auc_is_that_of_the_planted_probabilities(tmp_path: Path) -> None:
    report = synth.write_synth(tmp_path, 1_000, eval_rows=30_000, seed=1)
    table = pq.read_table(tmp_path / "eval.parquet")
    model = synth.PlantedModel(1)
    numerics = np.stack(
        [np.nan_to_num(table[f"int_{c}"].to_numpy(zero_copy_only=False).astype(float)) for c in range(13)], 1
    )
    ranks = np.stack([ranks_of(table[f"cat_{c}"].to_pylist(), c) for c in range(26)], axis=1)
    scores = model.click_logit(numerics, ranks)
    # float32 columns round the inputs a little; the AUC hardly notices.
    assert roc_auc_score(table["label"].to_numpy(), scores) == pytest.approx(
        report.best_auc["label"], abs=1e-6
    )
    assert json.loads((tmp_path / "synth.json").read_text())["best_auc"] == report.best_auc


def ranks_of(ids: list[int | None], column: int) -> np.ndarray:
    """Invert the scattering of ranks over ids by table."""
    size = synth.CATEGORY_SIZES[column]
    inverse = np.empty(size, dtype=np.int64)
    inverse[synth._rank_to_id(np.arange(size), column)] = np.arange(size)
    return np.array([-1 if i is None else inverse[i] for i in ids])


def test_pairs_of_ids_matter_more_than_ids_alone() -> None:
    """A linear model must stay clearly behind one that knows the interactions."""
    model = synth.PlantedModel(0)
    rng = np.random.default_rng(0)
    block = synth._draw_inputs(model, rng, 40_000)
    numerics = np.nan_to_num(block.numerics)
    full = model.click_logit(numerics, block.ranks)
    labels = rng.random(len(full)) < 1 / (1 + np.exp(-full))
    model.id_vectors = [np.zeros_like(v) for v in model.id_vectors]
    linear = model.click_logit(numerics, block.ranks)
    assert roc_auc_score(labels, full) - roc_auc_score(labels, linear) > 0.03


@pytest.mark.parametrize(("rows", "file_format"), [(0, "parquet"), (-5, "parquet"), (10, "orc")])
def test_nonsense_is_refused(tmp_path: Path, rows: int, file_format: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        synth.write_synth(tmp_path, rows, file_format=file_format)


@pytest.mark.parametrize("eval_rows", [0, -1])
def test_no_rows_to_evaluate_on_are_refused(tmp_path: Path, eval_rows: int) -> None:
    with pytest.raises(ValueError, match=f"eval_rows must be at least 1, got {eval_rows}"):
        synth.write_synth(tmp_path, 10, eval_rows=eval_rows)
