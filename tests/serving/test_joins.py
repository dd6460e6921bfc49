from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recgrad.serving.joins
from recgrad.data.faults import Faults
from recgrad.errors import DataError
from recgrad.serving.columns import absent_cells
from recgrad.serving.joins import FeatureStore, add_stored
from recgrad.serving.settings import StoreSettings

TABLE = pa.table(
    {
        "id": [7, 3, 5],
        "price": pa.array([0.5, None, 2.5], pa.float32()),
        "city": pa.array(["a", "b", "a"]).dictionary_encode(),
        "tags": [["x"], [], None],
    }
)


def store(
    tmp_path: Path, table: pa.Table = TABLE, key: str = "id", name: str = "items.parquet"
) -> FeatureStore:
    pyarrow.parquet.write_table(table, tmp_path / name)
    return FeatureStore("item", StoreSettings(str(tmp_path / name), key), tmp_path)


def test_columns_are_found_by_id(tmp_path: Path) -> None:
    found, faults = store(tmp_path), Faults()
    rows = found.find(pa.array([5, 7, 5]), faults)
    assert not faults
    assert found.take("price", rows, pa.float64()).to_pylist() == [2.5, 0.5, 2.5]
    assert found.take("city", rows, pa.string()).to_pylist() == ["a", "a", "a"]
    assert found.take("tags", rows, pa.list_(pa.string())).to_pylist() == [None, ["x"], None]


def test_ids_as_texts_find_integers_and_the_other_way_around(tmp_path: Path) -> None:
    numbers = store(tmp_path)
    assert numbers.find(pa.array(["5", "3"]), Faults()).tolist() == [2, 1]
    texts = store(tmp_path, pa.table({"id": ["7", "x"], "v": [1, 2]}), name="texts.parquet")
    assert texts.find(pa.array([7]), Faults()).tolist() == [0]


def test_unknown_and_missing_ids_are_bad_rows(tmp_path: Path) -> None:
    found, faults = store(tmp_path), Faults()
    rows = found.find(pa.array([3, 99, None]), faults)
    assert rows.tolist() == [1, -1, -1]
    assert list(faults.by_row()) == [1, 2]
    assert faults.by_row()[1].problem == "99 is no id of the stored item features"
    assert "items.parquet" in faults.by_row()[1].remedy
    assert found.take("price", rows, pa.float64()).to_pylist() == [None, None, None]


def test_what_a_request_says_itself_stays(tmp_path: Path) -> None:
    types = {"price": pa.float64(), "city": pa.string(), "other": pa.int64()}
    columns = {"id": pa.array([7]), "price": pa.array([9.0])}
    joined = add_stored(columns, [store(tmp_path)], types, Faults())
    assert {name: column.to_pylist() for name, column in joined.items()} == {
        "id": [7],
        "price": [9.0],
        "city": ["a"],
    }


def test_rows_that_lack_what_others_say_take_what_is_stored(tmp_path: Path) -> None:
    types = {"price": pa.float64(), "tags": pa.list_(pa.string())}
    rows = [{"id": 7}, {"id": 5, "price": 9.0, "tags": None}, {"id": 5, "price": None}]
    columns = {
        "id": pa.array([7, 5, 5]),
        "price": pa.array([None, 9.0, None]),
        "tags": pa.nulls(3, types["tags"]),
    }
    absent = absent_cells(rows)
    joined = add_stored(columns, [store(tmp_path)], types, Faults(), absent)
    assert joined["price"].to_pylist() == [0.5, 9.0, None], "a null that is sent stays"
    assert joined["tags"].to_pylist() == [["x"], None, None]
    assert absent == {}


def test_ids_whose_hashes_collide_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recgrad.serving.joins, "hash_array", lambda array: np.full(len(array), 4, np.uint64))
    found, faults = store(tmp_path), Faults()
    assert found.find(pa.array([5, 7, 3, 8]), faults).tolist() == [2, 0, 1, -1]
    assert list(faults.by_row()) == [3]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(max_size=3), unique=True, max_size=20), st.lists(st.text(max_size=3), max_size=20))
def test_finding_is_what_a_dictionary_finds(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str], asked: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("store")
    found = store(folder, pa.table({"id": pa.array(ids, pa.string()), "v": np.arange(len(ids))}))
    place = {name: at for at, name in enumerate(ids)}
    assert found.find(pa.array(asked, pa.string()), Faults()).tolist() == [place.get(a, -1) for a in asked]


def test_arrow_files_are_read_and_workers_share_one_copy(tmp_path: Path) -> None:
    path = tmp_path / "items.arrow"
    pyarrow.feather.write_feather(TABLE, path, compression="zstd")
    first = FeatureStore("item", StoreSettings(str(path), "id"), tmp_path)
    copies = sorted(p.name for p in tmp_path.glob("item-*.arrow"))
    inodes = [p.stat().st_ino for p in tmp_path.glob("item-*.arrow")]
    second = FeatureStore("item", StoreSettings(str(path), "id"), tmp_path)
    assert inodes == [p.stat().st_ino for p in tmp_path.glob("item-*.arrow")]
    assert len(copies) == 1
    assert len(first) == len(second) == 3
    pyarrow.feather.write_feather(TABLE.slice(0, 2), path)
    third = FeatureStore("item", StoreSettings(str(path), "id"), tmp_path)
    assert len(third) == 2
    third.accept()
    assert len(list(tmp_path.glob("item-*.arrow"))) == 1
    path.write_text("no longer a table")
    assert len(FeatureStore("item", StoreSettings(str(path), "id"), tmp_path, accepted=True)) == 2
    assert first.find(pa.array([5]), Faults()).tolist() == [2]  # the old one stays mapped


@pytest.mark.parametrize(
    ("table", "key", "words"),
    [
        (TABLE, "idd", "no column 'idd'; did you mean 'id'"),
        (pa.table({"id": [1, 2, 1]}), "id", "id '1' of column 'id' occurs in rows 0 and 2; keep one"),
        (pa.table({"id": [1, None]}), "id", "the id of row 1 .column 'id'. is null"),
        (pa.table({"id": [0.5]}), "id", "column 'id' is of type double; ids are integers or texts"),
    ],
)
def test_files_that_cannot_be_joined_are_told(tmp_path: Path, table: Any, key: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        store(tmp_path, table, key)


def test_other_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file; check --item_features"):
        FeatureStore("item", StoreSettings(str(tmp_path / "none"), "id"), tmp_path)
    (tmp_path / "text").write_text("id,price\n1,2\n")
    with pytest.raises(DataError, match="write parquet or Arrow IPC"):
        FeatureStore("item", StoreSettings(str(tmp_path / "text"), "id"), tmp_path)


def test_a_type_that_the_model_cannot_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column 'tags' is of type list.*trained with double"):
        store(tmp_path).check({"tags": pa.float64()})


def test_a_file_without_rows_has_no_ids(tmp_path: Path) -> None:
    found = store(tmp_path, TABLE.slice(0, 0))
    assert found.find(pa.array([1]), Faults()).tolist() == [-1]
