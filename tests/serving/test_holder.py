from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from serving_fake import FakeScorer

from recgrad.errors import RecgradError
from recgrad.serving.holder import LOOKS_BEFORE_GONE, ModelHolder
from recgrad.serving.settings import StoreSettings


def write(folder: Path, shift: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps({"shift": shift}))


def load(path: Path) -> FakeScorer:
    shift = json.loads((path / "manifest.json").read_text())["shift"]
    if shift < 0:
        raise RecgradError("the golden rows are not reproduced")
    return FakeScorer(shift)


def shift_of(holder: ModelHolder) -> float:
    scorer = holder.current.scorer
    assert isinstance(scorer, FakeScorer)
    return scorer.shift


def replace(path: Path, shift: float) -> None:
    """As `recgrad export` does it: written beside, then renamed."""
    write(path.with_name("new"), shift)
    path.rename(path.with_name("old"))
    path.with_name("new").rename(path)
    shutil.rmtree(path.with_name("old"))


def test_a_new_bundle_is_taken_up_once_it_lies_still(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    write(path, 1)
    events: list[str] = []
    holder = ModelHolder(path, load=load, on_event=events.append)
    before = holder.current
    assert not holder.look()
    replace(path, 2)
    assert not holder.look()  # it may be half written
    assert holder.look()
    assert not holder.look()
    assert shift_of(holder) == 2
    assert holder.current.version != before.version
    assert events == ["swap"]


def test_a_bad_bundle_is_refused_once_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    write(path, 1)
    events: list[str] = []
    holder = ModelHolder(path, load=load, on_event=events.append)
    replace(path, -1)
    assert not any(holder.look() for _ in range(4))
    assert shift_of(holder) == 1
    assert events == ["refused"]
    assert holder.refused is not None
    assert holder.refused.why == "the golden rows are not reproduced"
    replace(path, 3)
    assert any(holder.look() for _ in range(2))
    assert shift_of(holder) == 3
    assert holder.refused is None


def test_a_bundle_that_breaks_the_loader_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    write(path, 1)
    holder = ModelHolder(path, load=load)
    (path / "manifest.json").write_text("{")
    for _ in range(2):
        holder.look()
    assert shift_of(holder) == 1
    assert holder.refused is not None
    assert "JSONDecodeError" in holder.refused.why


def test_a_bundle_that_is_gone_is_told_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    write(path, 1)
    events: list[str] = []
    holder = ModelHolder(path, load=load, on_event=events.append)
    shutil.rmtree(path)
    for _ in range(LOOKS_BEFORE_GONE - 1):
        holder.look()
    assert events == []
    for _ in range(5):
        holder.look()
    assert events == ["refused"]
    assert shift_of(holder) == 1
    write(path, 2)
    assert any(holder.look() for _ in range(2))
    assert shift_of(holder) == 2


def test_a_link_that_is_switched_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "v1", 1)
    write(tmp_path / "v2", 2)
    link = tmp_path / "bundle"
    link.symlink_to("v1")
    holder = ModelHolder(link, load=load)
    (tmp_path / "next").symlink_to("v2")
    os.replace(tmp_path / "next", link)
    assert any(holder.look() for _ in range(2))
    assert shift_of(holder) == 2


def test_a_file_that_is_still_written_to_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    write(path, 1)
    holder = ModelHolder(path, load=load)
    for size in range(3):
        (path / "tables").write_bytes(b"x" * (size + 1))
        assert not holder.look()
    assert holder.look()


def test_stored_features_are_followed_too(tmp_path: Path) -> None:
    path, items = tmp_path / "bundle", tmp_path / "items.parquet"
    write(path, 1)
    pyarrow.parquet.write_table(pa.table({"id": [1], "price": [1.0]}), items)
    stores = {"item": StoreSettings(str(items), "id")}
    holder = ModelHolder(path, load=load, stores=stores, folder=tmp_path)
    version = holder.current.version
    pyarrow.parquet.write_table(pa.table({"id": [1, 2], "price": [1.0, 2.0]}), tmp_path / "next")
    os.replace(tmp_path / "next", items)
    assert any(holder.look() for _ in range(2))
    assert len(holder.current.stores[0]) == 2
    assert holder.current.version == version
    items.write_text("not parquet")
    for _ in range(2):
        holder.look()
    assert len(holder.current.stores[0]) == 2
    assert holder.refused is not None


def test_a_store_that_the_model_cannot_read_is_an_error_at_the_start(tmp_path: Path) -> None:
    path, items = tmp_path / "bundle", tmp_path / "items.parquet"
    write(path, 1)
    pyarrow.parquet.write_table(pa.table({"id": [1], "price": [[1.0]]}), items)
    with pytest.raises(RecgradError, match="column 'price' is of type list"):
        ModelHolder(path, load=load, stores={"item": StoreSettings(str(items), "id")}, folder=tmp_path)


def test_following_runs_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    write(path, 1)
    holder = ModelHolder(path, load=load)
    holder.follow(0.01)
    replace(path, 2)
    for _ in range(4000):
        if shift_of(holder) == 2:
            break
        time.sleep(0.005)
    holder.stop()
    assert shift_of(holder) == 2
