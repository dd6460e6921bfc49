"""`recgrad sequences` against a plain Python rendering of what it promises."""

from __future__ import annotations

import datetime
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.cli.main import main
from recgrad.config.load import load_config
from recgrad.errors import DataError
from recgrad.histories import HistorySettings, write_histories
from recgrad.histories.config import write_configs


def read(folder, part):
    return pq.read_table(folder / f"{part}.parquet").to_pylist()


def write_log(path, events, **columns):
    user, item, time = zip(*events, strict=True) if events else ([], [], [])
    table = {"user_id": user, "item_id": item, "time": time, **columns}
    pq.write_table(pa.table({name: list(values) for name, values in table.items()}), path)
    return str(path)


def expected_leave_one_out(events, max_length=0, stride=0):
    """Rows of each part, as (user, history, item), by plain loops."""
    users = defaultdict(list)
    for place, (user, item, time) in enumerate(events):
        users[user].append((time, place, item))
    parts = {"train": [], "valid": [], "test": []}
    for user, own in users.items():
        own.sort()
        held = 2 if len(own) >= 3 else 0
        train = len(own) - held

        def row(at, own=own, user=user):
            history = [item for _, _, item in own[max(0, at - max_length) if max_length else 0 : at]]
            return own[at][0], user, history, own[at][2]

        last = train - 1
        while last >= 1:
            parts["train"].append(row(last))
            last = last - stride if stride else 0
        if held:
            parts["valid"].append(row(train))
            parts["test"].append(row(train + 1))
    return parts


def found(folder, part):
    return [(r["time"], r["user_id"], r["history__item_id"], r["item_id"]) for r in read(folder, part)]


EVENTS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(0, 50).map(float)), min_size=1, max_size=60
)


@settings(max_examples=25, deadline=None)
@given(
    events=EVENTS, max_length=st.integers(0, 4), stride=st.integers(0, 3), memory=st.sampled_from([3, 10**6])
)
def test_leave_one_out(tmp_path_factory, events, max_length, stride, memory):
    folder = tmp_path_factory.mktemp("out")
    log = write_log(folder / "log.parquet", events)
    stride = min(stride, max_length) if max_length else stride
    what = HistorySettings(time="time", max_length=max_length, stride=stride, events_in_memory=memory)
    expected = expected_leave_one_out(events, max_length, stride)
    if not expected["train"]:
        with pytest.raises(DataError, match="no user has two events"):
            write_histories(log, str(folder / "o"), what)
        return
    report = write_histories(log, str(folder / "o"), what)
    assert report.events == len(events)
    for part, rows in expected.items():
        got = found(folder / "o", part) if report.rows[part] else []
        assert sorted(got) == sorted(rows)
        assert [time for time, *_ in got] == sorted(time for time, *_ in rows)  # in the order of time
    used = defaultdict(int)
    for _, _, history, item in expected_leave_one_out(events)["train"]:
        for one in [*history, item]:
            used[one] += 1
    if not max_length:
        weights = {row["id"]: row["weight"] for row in read(folder / "o", "items")}
        assert weights == {item: used[item] for item in {item for _, item, _ in events}}


def test_nothing_of_a_later_time_is_in_any_history_of_a_split_by_time(tmp_path):
    rng = np.random.default_rng(0)
    events = [(int(u), int(i), float(t)) for u, i, t in rng.integers(0, 30, (500, 3)) * [1, 1, 100]]
    what = HistorySettings(time="time", split="time", valid_share=0.2, test_share=0.3, events_in_memory=90)
    report = write_histories(write_log(tmp_path / "log.parquet", events), str(tmp_path / "o"), what)
    valid, test = report.bounds
    times = sorted(t for _, _, t in events)
    assert valid == times[250]
    assert test == times[350]
    own = defaultdict(list)
    for place, (user, item, time) in enumerate(events):
        own[user].append((time, place, item))
    for part, begin, end in (("train", None, valid), ("valid", valid, test), ("test", test, np.inf)):
        rows = {row["user_id"]: row for row in read(tmp_path / "o", part)}
        for user, happened in own.items():
            happened = sorted(happened)
            if part == "train":
                before = [item for time, _, item in happened if time < end]
                wanted, history = before[-1:], before[:-1]
            else:
                wanted = [item for time, _, item in happened if begin <= time < end]
                history = [item for time, _, item in happened if time < begin]
            if not history or not wanted:
                assert user not in rows
                continue
            row = rows.pop(user)
            assert row["history__item_id"] == history
            assert row["item_id"] == wanted[0]
            assert row["relevant"] == wanted
            assert all(time < (begin or end) for time in row["history__time"])
        assert not rows


def test_equal_times_keep_the_order_of_the_log(tmp_path):
    log = write_log(tmp_path / "log.parquet", [(1, 5, 7.0), (1, 3, 7.0), (1, 4, 7.0), (1, 9, 6.0)])
    report = write_histories(log, str(tmp_path / "o"), HistorySettings(time="time"))
    assert read(tmp_path / "o", "test")[0]["history__item_id"] == [9, 5, 3]
    assert report.turned == 1


def test_texts_dates_and_further_columns(tmp_path):
    days = [datetime.date(2026, 1, day) for day in (3, 1, 2, 4)]
    table = pa.table({"u": ["a"] * 4, "i": ["x", "y", "z", "w"], "day": days, "stars": [3, 1, None, 4]})
    pq.write_table(table, tmp_path / "log.parquet")
    what = HistorySettings(user="u", item="i", time="day", carry=("stars",))
    report = write_histories(str(tmp_path / "log.parquet"), str(tmp_path / "o"), what)
    (row,) = read(tmp_path / "o", "test")
    assert row["history__i"] == ["y", "z", "x"]
    assert row["history__stars"] == [1, None, 3]
    assert row["i"] == "w"
    assert np.diff(row["history__day"]).tolist() == [86400.0, 86400.0]
    assert report.largest is None


@pytest.mark.parametrize("zone", ["", "Z", "+02:00"])
def test_times_that_are_texts(tmp_path, zone):
    days = [f"2026-01-0{day}T12:30:0{day}{zone}" for day in (3, 1, 2, 4)]
    (tmp_path / "log.csv").write_text("user_id,item_id,day\n" + "".join(f"a,{d[9]},{d}\n" for d in days))
    write_histories(str(tmp_path / "log.csv"), str(tmp_path / "o"), HistorySettings(time="day"))
    (row,) = read(tmp_path / "o", "test")
    at = [datetime.datetime.fromisoformat(day.replace("Z", "+00:00")) for day in sorted(days)]
    at = [moment if moment.tzinfo else moment.replace(tzinfo=datetime.timezone.utc) for moment in at]
    assert row["history__item_id"] == [1, 2, 3]
    assert [*row["history__day"], row["day"]] == [moment.timestamp() for moment in at]


def test_lines_of_users(tmp_path):
    (tmp_path / "log.txt").write_text("1 10 11 12 13\n\n2 11 10\n3 12\n")
    what = HistorySettings()
    report = write_histories(str(tmp_path / "log.txt"), str(tmp_path / "o"), what, lines=True)
    assert (report.users, report.items, report.events, report.single) == (3, 4, 7, 1)
    rows = [(r["user_id"], r["history__item_id"], r["item_id"]) for r in read(tmp_path / "o", "train")]
    assert rows == [(1, [10], 11), (2, [11], 10)]
    assert read(tmp_path / "o", "test") == [{"user_id": 1, "history__item_id": [10, 11, 12], "item_id": 13}]


def test_attributes_of_items(tmp_path):
    log = write_log(tmp_path / "log.parquet", [(1, item, float(item)) for item in (3, 1, 2)])
    pq.write_table(pa.table({"item_id": [2, 3], "brand": ["b", "c"]}), tmp_path / "attributes.parquet")
    what = HistorySettings(time="time", split="none")
    write_histories(log, str(tmp_path / "o"), what, items_path=str(tmp_path / "attributes.parquet"))
    assert read(tmp_path / "o", "items") == [
        {"id": 1, "weight": 1, "item_id": 1, "brand": None},
        {"id": 2, "weight": 1, "item_id": 2, "brand": "b"},
        {"id": 3, "weight": 1, "item_id": 3, "brand": "c"},
    ]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user_id": [1, None]}, r"column 'user_id': the user is null \(row 1 of .*log.parquet\)"),
        ({"item_id": [None, 1]}, r"column 'item_id': the item is null \(row 0 of"),
        ({"time": [1.0, float("nan")]}, r"column 'time': the time is not a finite number \(row 1 of"),
        (
            {"time": ["2026-01-31", "soon"]},
            r"column 'time': 'soon' is no time \(row 1 of .*\); write seconds",
        ),
        ({"time": ["10", "soon"]}, r"column 'time': 'soon' is no time \(row 1 of"),
        (
            {"time": ["2026-01-31 12:00:00", "2026-01-31T12:00:00+02:00"]},
            r"'2026-01-31T12:00:00\+02:00' is another kind of time than '2026-01-31 12:00:00' \(row 1 of",
        ),
        ({"time": [b"a", b"b"]}, "column 'time' is binary, and times must be numbers"),
        ({"item": [1, 2]}, "column 'item_id' is not in"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_row(tmp_path, columns, message):
    table = {"user_id": [1, 1], "item_id": [1, 2], "time": [1.0, 2.0], **columns}
    if "item" in columns:
        del table["item_id"]
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    with pytest.raises(DataError, match=message):
        write_histories(str(tmp_path / "log.parquet"), str(tmp_path / "o"), HistorySettings(time="time"))


def test_lines_without_items_are_refused(tmp_path):
    (tmp_path / "log.txt").write_text("1 10 11\n2\n")
    with pytest.raises(DataError, match=r"line 2 of .*log.txt has a user and no item"):
        write_histories(str(tmp_path / "log.txt"), str(tmp_path / "o"), HistorySettings(), lines=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "time"}, "needs the column of times"),
        ({"max_length": 3, "stride": 4}, "stride must be at most max_length 3"),
        ({"valid_share": 0.6, "test_share": 0.5}, "below 1 in all"),
        ({"carry": ("item_id",)}, "column 'item_id' is named twice"),
    ],
)
def test_settings_without_meaning_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        HistorySettings(**changes)


def test_the_command_says_what_it_did_and_leaves_nothing_behind(tmp_path, capsys):
    events = [(u, i, float(10 * u + i)) for u in range(4) for i in range(4)]
    log, out = write_log(tmp_path / "log.parquet", events), tmp_path / "o"
    assert main(["sequences", log, "--time", "time", "--out", str(out), "--max-length", "2"]) == 0
    said = capsys.readouterr().out
    assert "16 events of 4 users and 4 items" in said
    assert f"recgrad train {out}/sasrec.config" in said
    files = sorted(path.name for path in out.iterdir())
    parts = ["test.parquet", "train.parquet", "valid.parquet"]
    assert files == ["hstu.config", "items.parquet", "sasrec.config", *parts]
    for model in ("sasrec", "hstu"):
        assert main(["check", str(out / f"{model}.config")]) == 0
    assert main(["sequences", log, "--time", "clock", "--out", str(out)]) == 2
    assert "column 'clock' is not in" in capsys.readouterr().err


def configs_of(folder, events, **settings):
    what = HistorySettings(time="time", **settings)
    report = write_histories(write_log(folder / "log.parquet", events), str(folder), what)
    return [load_config(path) for path in write_configs(str(folder), what, report)]


def test_configs_stop_by_what_is_held_back_and_keep_the_best(tmp_path):
    events = [(u, (7 * u + i) % 20, float(i)) for u in range(9) for i in range(5)]
    for config in configs_of(tmp_path, events):
        assert config.train_config.early_stopping.metric == "catalogue_ndcg@10"
        assert config.train_config.early_stopping.patience == 20  # an epoch is one step
        assert config.export_config.exporter_type == "best"
        assert config.eval_config.catalogue.seen_field == "history__item_id"
        assert config.model_config.losses[0].WhichOneof("loss") == "full_softmax"
    assert config.model_config.hstu.time_input == "times"


def test_configs_where_nothing_is_held_back(tmp_path):
    for config in configs_of(tmp_path, [(u, u + i, float(i)) for u in range(9) for i in range(2)]):
        assert config.eval_input_path.endswith("train.parquet")
        assert not config.train_config.HasField("early_stopping")
        assert config.export_config.exporter_type == "latest"


def test_lists_have_what_was_seen_where_users_come_back(tmp_path):
    for config in configs_of(tmp_path, [(u, i % 2, float(i)) for u in range(9) for i in range(6)]):
        assert not config.eval_config.catalogue.mask_seen
        assert not config.eval_config.catalogue.HasField("seen_field")


@pytest.mark.parametrize(("events", "length"), [(20, 50), (90, 100), (150, 200), (900, 200)])
def test_models_look_at_most_of_a_history(tmp_path, capsys, events, length):
    log = [(u, i, float(i)) for u in range(3) for i in range(events)]
    path = write_log(tmp_path / "log.parquet", log)
    assert main(["sequences", path, "--time", "time", "--out", str(tmp_path)]) == 0
    config = load_config(tmp_path / "sasrec.config")
    assert config.model_config.sasrec.max_seq_len == length
    assert ("--max-length 200 --stride 200 makes rows of them" in capsys.readouterr().out) == (events == 900)


def test_many_items_are_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr("recgrad.histories.config.MOST_RANKED", 19)
    for config in configs_of(tmp_path, [(u, (7 * u + i) % 20, float(i)) for u in range(9) for i in range(5)]):
        assert config.data_config.next_item_sampler.num_sample == 4096
        assert config.model_config.losses[0].softmax_cross_entropy.log_q_correction
