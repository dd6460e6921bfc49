"""`recgrad init`: what it finds in a table, what it chooses, and that its config trains."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from recgrad.cli.main import main
from recgrad.config import load_config
from recgrad.config.expand import expand_config
from recgrad.config.proto.data_pb2 import DataConfig, ParquetDataset
from recgrad.data.readers.build import open_reader
from recgrad.errors import DataError
from recgrad.starting import InitSettings, begin
from recgrad.starting.profile import Column, look
from recgrad.starting.roles import Asked
from recgrad.starting.sketch import add_values, empty_registers, estimate
from recgrad.training.preflight import check_everything
from recgrad.training.run import train

ROWS = 6000


def log(rows: int = ROWS) -> pa.Table:
    """A log of exposures with all that a log may have."""
    rng = np.random.default_rng(1)
    user, item = rng.integers(0, 300, rows), rng.integers(0, 90, rows)
    taste = rng.normal(size=300)
    click = (rng.random(rows) < 1 / (1 + np.exp(-2 * taste[user]))).astype(int)
    watched = np.where(click == 1, rng.integers(5, 60, rows), rng.integers(0, 5, rows))
    begin_ = datetime(2024, 1, 1)
    return pa.table(
        {
            "user_id": [f"u{u}" for u in user],
            "item_id": item + 10_000_000,
            "click": click,
            "is_like": np.where(rng.random(rows) < 0.02, 1, 0) * click,
            "is_hate": (rng.random(rows) < 0.02).astype(int),
            "play_seconds": watched,
            "city": [["Rome", "Oslo", None][u % 3] for u in user],
            "fans": pa.array([None if u == 5 else int(u * u) for u in user]),
            "price": (item * 1.5 + 0.25).astype(np.float32),
            "tags": [f"t{i % 7}|t{i % 5}" for i in item],
            "history": [[10_000_000 + int(v) for v in rng.integers(0, 90, u % 4)] for u in user],
            "nested": [{"a": 1}] * rows,
            "version": ["v1"] * rows,
            "sample_weight": rng.random(rows),
            "note": [f"text number {i} of the log" for i in range(rows)],
            "when": [begin_ + timedelta(minutes=i) for i in range(rows)],
        }
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("init") / "log.parquet"
    pq.write_table(log(), file, row_group_size=1000)
    return str(file)


def run(path: str, out: Path, **settings: Any) -> Any:
    asked = Asked(**settings.pop("asked", {}))
    return begin(InitSettings(path, str(out), asked=asked, **settings))


def test_every_column_gets_its_role(path: str, tmp_path: Path) -> None:
    found = run(path, tmp_path)
    roles = {choice.name: f"{choice.role} {choice.side}" for choice in found.roles.choices}
    assert roles == {
        "user_id": "id user",
        "item_id": "id item",
        "click": "label context",
        "is_like": "outcome context",
        "is_hate": "outcome context",
        "play_seconds": "outcome context",
        "city": "category user",
        "fans": "number user",
        "price": "number item",
        "tags": "bag item",
        "history": "history context",
        "nested": "ignored context",
        "version": "ignored user",
        "sample_weight": "ignored context",
        "note": "ignored context",
        "when": "time context",
    } | {"version": roles["version"], "history": roles["history"]}
    assert roles["version"].startswith("ignored")
    assert roles["history"].startswith("history")


def test_the_config_passes_the_check_and_learns(path: str, tmp_path: Path) -> None:
    found = run(path, tmp_path)
    report = check_everything(str(found.config), sample_rows=500)
    assert report.ok, report.problems
    result = train(str(found.config), edit_config_json={"data_config.batch_size": 64})
    assert result.metrics["auc"] > 0.75, "users differ in how often they click"


def test_rows_are_split_by_time_without_copies(path: str, tmp_path: Path) -> None:
    config = load_config(run(path, tmp_path).config)
    data = DataConfig(dataset_type=ParquetDataset)
    train_rows, eval_rows = (
        open_reader(p, data).num_rows for p in (config.train_input_path, config.eval_input_path)
    )
    assert (train_rows, eval_rows) == (0.9 * ROWS, 0.1 * ROWS)
    assert config.eval_input_path.startswith(f"{path} where when >= 2024-01-0")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pipeline.config"]


@pytest.mark.parametrize("split", ["users", "random"])
def test_other_splits(split: str, path: str, tmp_path: Path) -> None:
    config = load_config(run(path, tmp_path, split=split, share=0.2).config)
    data = DataConfig(dataset_type=ParquetDataset)
    rows = [open_reader(p, data).num_rows for p in (config.train_input_path, config.eval_input_path)]
    assert sum(rows) == ROWS
    assert 0.1 * ROWS < rows[1] < 0.3 * ROWS


def test_keep_and_ignore_overrule(path: str, tmp_path: Path) -> None:
    asked = {"keep": frozenset({"is_hate"}), "ignore": frozenset({"city"}), "labels": ("click",)}
    found = run(path, tmp_path, asked=asked)
    roles = {choice.name: choice.role for choice in found.roles.choices}
    assert roles["is_hate"] == "category"
    assert roles["city"] == "ignored"


def test_several_labels_make_several_tasks(path: str, tmp_path: Path) -> None:
    found = run(path, tmp_path, asked={"labels": ("click", "is_like")})
    report = check_everything(str(found.config), sample_rows=200)
    assert report.ok, report.problems
    config = expand_config(load_config(found.config))
    assert [tower.label_name for tower in config.model_config.mmoe.task_towers] == ["click", "is_like"]


def test_text_without_a_header(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{i % 50}; {'yes' if rng.random() < 0.3 else 'no'};{i % 9}.5" for i in range(600)]
    file = tmp_path / "rows.data"
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match="does not look like names of columns"):
        run(str(file), tmp_path / "a", asked={"labels": ("answer",)})
    found = run(str(file), tmp_path / "a", names=["code", "answer", "size"], asked={"labels": ("answer",)})
    assert found.roles.labels["answer"].positive == "yes", "the rarer of the two"
    report = check_everything(str(found.config), sample_rows=200)
    assert report.ok, report.problems


def test_null_labels_are_left_out(tmp_path: Path) -> None:
    click = [None if i % 10 == 0 else i % 3 % 2 for i in range(2000)]
    pq.write_table(pa.table({"click": click, "x": np.arange(2000) % 40}), tmp_path / "a.parquet")
    config = load_config(run(str(tmp_path / "a.parquet"), tmp_path / "out").config)
    assert config.train_input_path.endswith("and click is not null")


BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("constant", {"click": [1] * 50}, {"labels": ("click",)}, "is constant (1 in every row)"),
    ("null", {"click": pa.array([None] * 50, pa.int64())}, {"labels": ("click",)}, "null in every row"),
    ("texts", {"name": [f"n{i}" for i in range(300)]}, {"labels": ("name",)}, "200 are learned as classes"),
    ("spaces", {"a": ["x", " x", "x "] * 9}, {"labels": ("a",)}, "is constant ('x', but for spaces"),
    (
        "days",
        {"day": pa.array(list(range(5)) * 9, pa.date32())},
        {"labels": ("day",)},
        "has 5 values of date32[day]",
    ),
    ("unknown", {"click": [0, 1] * 25}, {"labels": ("clik",)}, "did you mean 'click'?"),
    ("which", {"a": [0, 1] * 25}, {}, "which column is the label?"),
    (
        "times",
        {"click": [0, 1] * 25, "t": ["2024-01-01", "02/01/2024"] * 25},
        {"labels": ("click",), "time": "t"},
        "2 formats ('02/01/2024', '2024-01-01')",
    ),
    ("nothing", {"click": [0, 1] * 25, "c": [1] * 50}, {"labels": ("click",)}, "no column is left"),
]


@pytest.mark.parametrize(("columns", "asked", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_tables_are_refused(
    columns: dict[str, Any], asked: dict[str, Any], message: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(DataError) as caught:
        run(str(tmp_path / "a.parquet"), tmp_path / "out", asked=asked)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_times_in_several_formats_are_no_times(tmp_path: Path) -> None:
    table = {
        "click": [0, 1, 1] * 500,
        "date": ["2024-01-01", "02/01/2024", "3 Feb"] * 500,
        "x": [1, 2, 1, 2, 3] * 300,
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    found = run(str(tmp_path / "a.parquet"), tmp_path / "out")
    assert found.roles.time == ""
    assert found.split.reason.startswith("at random")


def test_wrong_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.bin").write_bytes(b"\0\1\2" * 100)
    (tmp_path / "twice.csv").write_text("a,a,click\n1,2,0\n3,4,1\n")
    for name, message in (
        ("a.bin", "neither parquet nor text"),
        ("twice.csv", "several columns called 'a'"),
        ("none.csv", "no file"),
    ):
        assert main(["init", str(tmp_path / name), "--out", str(tmp_path / "o")]) == 2
        assert message in capsys.readouterr().err


def test_the_command_prints_what_it_chose(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", path, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "tells click by itself" in printed
    assert "split by time" in printed
    assert f"recgrad train {tmp_path}/pipeline.config" in printed
    assert main(["init", path, "--out", str(tmp_path)]) == 2
    assert "exists" in capsys.readouterr().err


def test_thousands_of_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {f"c{i}": rng.integers(0, 5, 60) for i in range(600)}
    pq.write_table(pa.table({"click": [0, 1] * 30, **columns}), tmp_path / "wide.parquet")
    found = run(str(tmp_path / "wide.parquet"), tmp_path / "out")
    assert len(expand_config(load_config(found.config)).feature_configs) == 600


def test_histories_of_a_log(path: str, tmp_path: Path) -> None:
    assert main(["init", path, "--task", "sequence", "--out", str(tmp_path / "s")]) == 0
    assert (tmp_path / "s" / "sasrec.config").exists()


@pytest.mark.parametrize("count", [1, 2, 15, 100, 5000, 200_000])
def test_the_sketch_counts_values(count: int) -> None:
    registers = empty_registers()
    for part in np.array_split(np.arange(count) * 7919, 3):
        add_values(registers, pa.array(np.repeat(part, 2)))
    assert estimate(registers) == pytest.approx(count, rel=0 if count <= 15 else 0.06)


def test_the_profile_is_that_of_all_rows(path: str) -> None:
    profile = look(open_reader(path, DataConfig(dataset_type=ParquetDataset)), sample_rows=500)
    table = log()
    assert 500 <= profile.sample.num_rows < 600
    fans: Column = profile.columns["fans"]
    values = [value for value in table.column("fans").to_pylist() if value is not None]
    assert (fans.rows, fans.nulls, fans.low, fans.high) == (
        ROWS,
        ROWS - len(values),
        min(values),
        max(values),
    )
    assert fans.distinct == pytest.approx(len(set(values)), rel=0.05)


def labelled(rows: int = 1500) -> pa.Table:
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 60, rows), rng.integers(0, 40, rows)
    rating = np.clip(np.round(3 + (user % 5 - 2) * 0.8 + rng.normal(0, 0.4, rows)), 1, 5).astype(int)
    kind = np.where(rng.random(rows) < 0.2, rng.integers(0, 4, rows), user % 4)
    return pa.table(
        {
            "user_id": user,
            "item_id": item,
            "rating": rating,
            "kind": kind,
            "colour": [["red", "green", "blue"][k % 3] for k in kind],
            "leak": rating * 2.0 + rng.normal(0, 0.01, rows),
        }
    )


def test_labels_of_more_than_two_values(tmp_path: Path) -> None:
    """Ratings are numbers, whole numbers from 0 on are classes; what gives them away is left out."""
    pq.write_table(labelled(), tmp_path / "log.parquet")
    path = str(tmp_path / "log.parquet")
    found = run(path, tmp_path / "a", asked={"labels": ("rating",), "ignore": frozenset({"colour"})})
    by_name = {choice.name: choice for choice in found.roles.choices}
    assert "regression" in by_name["rating"].reason
    assert by_name["leak"].role == "outcome"
    assert check_everything(str(found.config)).ok
    result = train(
        str(found.config), edit_config_json={"data_config.batch_size": 64, "train_config.num_epochs": 8}
    )
    assert result.metrics["mean_squared_error"] < 0.8, "guessing the mean has 1.4"
    both = run(
        path, tmp_path / "b", asked={"labels": ("kind", "rating"), "ignore": frozenset({"colour", "leak"})}
    )
    assert {name: kind.classes for name, kind in both.roles.labels.items()} == {"kind": 4, "rating": 0}
    config = load_config(both.config)
    assert [tower.num_class for tower in config.model_config.mmoe.task_towers] == [4, 1]
    assert check_everything(str(both.config)).ok


def test_classes_that_are_texts(tmp_path: Path) -> None:
    """A class that one row alone has is found, spaces do not count, and predictions name classes."""
    rows = 300_000
    user = np.random.default_rng(0).integers(0, 50, rows)
    colour = np.array(["red", "green ", "blue"], object)[user % 3]
    colour[::10] = "red"
    colour[-1] = "ultra"
    table = pa.table({"user_id": user, "x": np.arange(rows) % 7, "colour": colour, "code": colour})
    pq.write_table(table, tmp_path / "log.parquet")
    path = str(tmp_path / "log.parquet")
    found = run(path, tmp_path / "a", asked={"labels": ("colour",)})
    by_name = {choice.name: choice for choice in found.roles.choices}
    assert by_name["colour"].reason == "learned; 4 classes"
    assert by_name["code"].role == "outcome"
    data = load_config(found.config).data_config
    assert list(data.label_classes[0].values) == ["blue", "green", "red", "ultra"]
    assert check_everything(str(found.config), sample_rows=200).ok
    pq.write_table(table.slice(0, 8000), tmp_path / "log.parquet")
    few = {"train_config.num_epochs": 1, "train_input_path": path, "eval_input_path": path}
    result = train(str(found.config), edit_config_json={**few, "data_config.batch_size": 64})
    assert result.metrics["accuracy"] > 0.9
    model, bundle = str(tmp_path / "a/model"), str(tmp_path / "bundle")
    assert main(["export", model, "--export_dir", bundle]) == 0
    for source in (model, bundle):
        out = tmp_path / f"{Path(source).name}.parquet"
        line = ["predict", source, "--predict_input_path", path, "--predict_output_path", str(out)]
        assert main([*line, "--reserved_columns", "colour"]) == 0
        scored = pq.read_table(out)
        assert scored.column_names == ["colour", "probs", "class"]
        same = [a.strip() == b for a, b in zip(scored["colour"].to_pylist(), scored["class"].to_pylist())]
        assert np.mean(same) > 0.9
        assert len(scored["probs"][0]) == 4
    blank = pa.array(np.where(np.arange(8000) % 3 == 0, "", colour[:8000]))
    pq.write_table(table.slice(0, 8000).set_column(2, "colour", blank), tmp_path / "blank.parquet")
    without = run(str(tmp_path / "blank.parquet"), tmp_path / "c", asked={"labels": ("colour",)})
    assert without.roles.labels["colour"].names == ("blue", "green", "red"), "an empty text is no class"
    assert "colour != ''" in load_config(without.config).train_input_path
    assert check_everything(str(without.config)).ok
    both = run(path, tmp_path / "b", asked={"labels": ("colour", "x"), "ignore": frozenset({"code"})})
    assert check_everything(str(both.config)).ok


def test_a_number_that_gives_the_label_away_is_found_although_each_value_stands_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    click = (rng.random(2000) < 0.3).astype(int)
    columns = {"click": click, "seconds": click * 10 + rng.random(2000), "x": rng.normal(size=2000)}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    roles = {c.name: c.role for c in run(str(tmp_path / "log.parquet"), tmp_path / "out").roles.choices}
    assert roles == {"click": "label", "seconds": "outcome", "x": "number"}


def test_two_towers_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    user = rng.integers(0, 120, 4000)
    item = user % 6 * 20 + rng.integers(0, 20, 4000)
    columns = {"user_id": user, "item_id": item, "timestamp": 1_700_000_000 + np.arange(4000)}
    click = (rng.random(4000) < 0.7).astype(int)
    pq.write_table(pa.table({**columns, "click": click}), tmp_path / "log.parquet")
    out = tmp_path / "out"
    line = ["init", str(tmp_path / "log.parquet"), "--task", "retrieval", "--out", str(out)]
    assert main([*line, "--label", "click"]) == 0
    assert "events where click is 1" in capsys.readouterr().out
    rows = {name: pq.read_metadata(out / f"{name}.parquet").num_rows for name in ("train", "valid", "test")}
    assert rows["valid"] == rows["test"] == 120
    assert rows["train"] == click.sum() - 3 * 120, "the first event of a user has nothing before it"
    assert pq.read_table(out / "items.parquet")["weight"].to_numpy().sum() == click.sum() - 2 * 120
    config = out / "pipeline.config"
    assert check_everything(str(config), sample_rows=200).ok
    assert "users come back" in config.read_text(), "of 20 items of her kind she has seen most"
    result = train(str(config), edit_config_json={"train_config.num_epochs": 2})
    assert result.metrics["catalogue_hit_rate@20"] > 0.5, "of 120 items, 20 are the user's kind"
    assert main([*line, "--label", "click"]) == 2
    assert "exists" in capsys.readouterr().err
    line[-1] = str(tmp_path / "other")
    assert main([*line, "--label", "clik"]) == 2
    assert "did you mean" in capsys.readouterr().err


def items_and_log(folder: Path) -> list[str]:
    """Users like one brand of six; each item stands in few events, so that brands tell more than ids."""
    rng = np.random.default_rng(0)
    user = rng.integers(0, 200, 3000)
    item = user % 6 + 6 * rng.integers(0, 100, 3000)
    columns = {"user_id": user, "item_id": [f"i{n}" for n in item], "timestamp": np.arange(3000)}
    pq.write_table(pa.table(columns), folder / "log.parquet")
    known = np.arange(1, 700)  # without item 0, and with some that nobody looked at
    attributes = {
        "item_id": [f"i{n}" for n in known],
        "brand": [f"b{n % 6}" for n in known],
        "price": [None if n % 9 == 0 else float(n % 50) for n in known],
        "tags": [[f"t{n % 3}", f"t{n % 4}"] for n in known],
        "shop": ["one"] * len(known),
    }
    pq.write_table(pa.table(attributes), folder / "shop.parquet")
    return [
        "init",
        str(folder / "log.parquet"),
        "--task",
        "retrieval",
        "--items",
        str(folder / "shop.parquet"),
    ]


@pytest.mark.parametrize("most", [100_000, 10], ids=["all", "sampled"])
def test_two_towers_with_attributes_of_items(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("recgrad.histories.retrieval_config.MOST_RANKED", most)
    line = items_and_log(tmp_path)
    out = tmp_path / "out"
    assert main([*line, "--out", str(out)]) == 0
    assert "constant" in capsys.readouterr().out
    rows = pq.read_table(out / "train.parquet")
    assert set(rows.column_names) == {
        *("user_id", "item_id", "timestamp", "history__item_id", "history__timestamp"),
        *("brand", "price", "tags", "shop"),
    }
    for item, brand in zip(rows["item_id"].to_pylist(), rows["brand"].to_pylist(), strict=True):
        assert brand == (None if item == "i0" else f"b{int(item[1:]) % 6}")
    config = load_config(out / "pipeline.config")
    sampler = getattr(config.data_config, str(config.data_config.WhichOneof("sampler")))
    assert list(sampler.attr_fields) == ["item_id", "brand", "price", "tags"]
    (group,) = (g for g in config.model_config.feature_groups if g.group_name == "item")
    assert list(group.feature_names) == ["item_id", "brand", "price", "price_norm", "tags"]
    assert check_everything(str(out / "pipeline.config"), sample_rows=200).ok
    result = train(str(out / "pipeline.config"), edit_config_json={"train_config.num_epochs": 2})
    if most > 10:
        assert result.metrics["catalogue_hit_rate@20"] > 0.12, "20 of the 100 of her brand: .2; of all: .03"


def test_tables_of_items_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = items_and_log(tmp_path)
    items = tmp_path / "shop.parquet"
    whole = pq.read_table(items)

    def refused(table: pa.Table, *flags: str) -> str:
        pq.write_table(table, items)
        assert main([*line, "--out", str(tmp_path / "out"), *flags]) == 2
        assert not (tmp_path / "out" / "pipeline.config").exists()
        return capsys.readouterr().err

    taken = whole.rename_columns(["item_id", "timestamp", "price", "tags", "shop"])
    assert "column 'timestamp' of" in refused(taken)
    assert "has an item twice" in refused(pa.concat_tables([whole, whole]))
    assert "no column is left to learn from" in refused(whole.select(["item_id", "shop"]))
    assert "column 'item_id' is not in" in refused(whole.drop_columns(["item_id"]))
    assert main(["init", line[1], "--items", str(items), "--out", str(tmp_path / "a")]) == 2
    assert "--items goes with --task retrieval alone" in capsys.readouterr().err
    assert main([*line[:3], "sequence", *line[4:], "--out", "b"]) == 2
    assert "--items does not go with --task sequence" in capsys.readouterr().err


def test_how_many_events_are_of_known_items() -> None:
    from recgrad.histories.retrieval_config import known_share

    items = pa.chunked_array([["a", "b"], ["c", "a"]])
    histories = pa.chunked_array([[["a", "a"], []], [["a", "b"], ["c", "a"]]], pa.list_(pa.string()))
    assert known_share(items, histories) == 0.5
