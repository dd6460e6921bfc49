"""`recgrad codes`: measures against loops, collisions, and ids as features."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.cli.main import main
from recgrad.retrieval.codes import flat_ids, gini, measure_codes, spread, tokens

SIZES = (3, 4, 2)
ids = st.lists(st.tuples(*(st.integers(0, size - 1) for size in SIZES)), min_size=1, max_size=60)


@settings(deadline=None, max_examples=60)
@given(rows=ids)
def test_the_report_is_that_of_a_loop(rows):
    report = measure_codes(np.array(rows), SIZES)
    counts = Counter(rows)
    shares = [n / len(rows) for n in counts.values()]
    entropy = -sum(p * math.log(p) for p in shares)
    assert (report.items, report.ids, report.largest) == (len(rows), len(counts), max(counts.values()))
    assert report.alone == sum(n == 1 for n in counts.values())
    assert report.no_collision_rate == len(counts) / len(rows)
    assert report.entropy == pytest.approx(entropy, abs=1e-12)
    assert report.entropy_ratio == pytest.approx(entropy / math.log(math.prod(SIZES)), abs=1e-12)
    for level, use in enumerate(report.levels):
        own = Counter(row[level] for row in rows)
        assert (use.codes, use.used) == (SIZES[level], len(own))
        expected = math.exp(-sum(n / len(rows) * math.log(n / len(rows)) for n in own.values()))
        assert use.perplexity == pytest.approx(expected)


@given(counts=st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_gini_is_the_mean_difference_over_twice_the_mean(counts):
    n = len(counts)
    apart = sum(abs(a - b) for a in counts for b in counts)
    assert gini(np.array(counts)) == pytest.approx(apart / (2 * n * sum(counts)), abs=1e-12)


def test_ids_beyond_64_bits_are_told_apart():
    codes = np.array([[1, 2, 3], [1, 2, 4], [1, 2, 3]])
    for sizes in ((9, 9, 9), (1 << 40, 1 << 40, 1 << 40)):
        flat = flat_ids(codes, sizes)
        assert flat[0] == flat[2] != flat[1]


@settings(deadline=None, max_examples=60)
@given(rows=ids, most=st.integers(1, 3), seed=st.integers(0, 99))
def test_spread_ids_have_room_or_are_counted(rows, most, seed):
    codes = np.array(rows)
    near = codes[:, None].repeat(3, 1)
    near[:, 1:, -1] = np.random.default_rng(seed).integers(0, SIZES[-1], (len(codes), 2))
    found, left = spread(codes, near, SIZES, most)
    counts = Counter(map(tuple, found.tolist()))
    assert sum(max(0, n - most) for n in counts.values()) == left
    first = {}
    for row, key in enumerate(rows):
        first.setdefault(key, []).append(row)
    for key, places in first.items():
        assert all(tuple(found[row]) == key for row in places[:most])
    assert all(tuple(found[i]) in {tuple(c) for c in near[i].tolist()} for i in range(len(codes)))


def test_tokens_share_no_number_between_levels():
    assert tokens(np.array([[2, 3, 1], [0, 0, 0]]), SIZES).tolist() == [[2, 6, 8], [0, 3, 7]]


@pytest.fixture
def predicted(tmp_path):
    codes = np.array([[0, 1], [0, 1], [2, 3], [0, 1]])
    near = np.concatenate([codes, codes + [[0, 1]] * 4], axis=1) % 4
    table = {"item": [7, 8, 9, 5], "codes": codes.tolist(), "candidate_codes": near.tolist()}
    pq.write_table(pa.table(table), tmp_path / "p.parquet")
    return tmp_path / "p.parquet"


def test_the_command_reports_and_writes_features(predicted, tmp_path, capsys):
    out, rows = tmp_path / "items.parquet", tmp_path / "rows.parquet"
    pq.write_table(pa.table({"video": [9, 7, 1], "label": [0, 1, 1]}), rows)
    line = ["codes", str(predicted), "--item", "item", "--codebook", "4,4", "--max_items_per_id", "1"]
    more = [
        "--out",
        str(out),
        "--rows",
        str(rows),
        "--rows_item",
        "video",
        "--rows_out",
        str(tmp_path / "r.parquet"),
    ]
    assert main([*line, *more]) == 0
    said = capsys.readouterr().out
    assert "4 items, 3 ids: no_collision_rate 0.7500" in said
    assert "level 1: 2 of 4 codes used (50.0%), 2 dead" in said
    assert "1 items found no candidate with room" in said
    assert "wrote 3 rows with codes" in said
    assert "1 of items without codes" in said
    items = pq.read_table(out)
    assert items.column_names == ["item", "codes", "code_1", "code_2", "sid", "tokens"]
    assert items.to_pylist()[1] == {
        "item": 8, "codes": [0, 2], "code_1": 0, "code_2": 2, "sid": "0_2", "tokens": [0, 6],
    }  # fmt: skip
    joined = pq.read_table(tmp_path / "r.parquet").to_pylist()
    assert [row["sid"] for row in joined] == ["2_3", "0_1", None]
    assert main(["codes", str(predicted), "--item", "item", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ids"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--item", "itm"], "has no column 'itm'; did you mean 'item'?"),
        (["--item", "item", "--codebook", "3,3"], "code 3 of level 2 at row 2"),
        (["--item", "item", "--codebook", "4"], "--codebook has 1 levels, and the ids"),
        (["--item", "item", "--codebook", "a"], "must be sizes such as 256,256,256, got 'a'"),
        (["--item", "item", "--rows", "x"], "--rows and --rows-out need each other"),
        (["--item", "item", "--out", "x.csv"], "must end with .parquet"),
    ],
)
def test_mistakes_are_named(words, message, predicted, capsys):
    assert main(["codes", str(predicted), *words]) == 2
    assert message in capsys.readouterr().err
