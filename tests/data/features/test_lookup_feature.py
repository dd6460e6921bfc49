"""lookup_feature against Python dicts."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.errors import ConfigError

keys = st.sampled_from(["a", "bb", "ключ", "d", "e:e"])
maps = st.none() | st.lists(st.tuples(keys, st.integers(-20, 20)), max_size=4)
asked = st.none() | st.lists(keys, max_size=3)
MEAN = lambda v: sum(v) / len(v)  # noqa: E731
COMBINE = {"sum": sum, "mean": MEAN, "avg": MEAN, "min": min, "max": max, "count": len}


def config(body: str = "") -> str:
    return f'lookup_feature {{ feature_name: "f" map: "user:m" key: "item:k" {body} }}'


def columns(rows) -> list[dict[str, pa.Array]]:
    """Maps as text, list and map columns, with keys as text and list."""
    kept = [[None if m is None else list(dict(m).items()) for m, _ in rows], [k for _, k in rows]]
    texts = [None if m is None else "\x1d".join(f"{k}:{v}" for k, v in m) for m, _ in rows]
    lists = [None if m is None else [f"{k}:{v}" for k, v in m] for m, _ in rows]
    key_texts = [None if k is None else "|".join(k) for k in kept[1]]
    key_array = pa.array(["x", *key_texts], pa.string()).slice(1)
    key_list = pa.array([["x"], *kept[1]], pa.list_(pa.string())).slice(1)
    typed = pa.array([[("a", 99)], *kept[0]], pa.map_(pa.string(), pa.int64())).slice(1)
    return [
        {"m": pa.array(["a:99", *texts], pa.string()).slice(1), "k": key_array},
        {"m": pa.array(lists, pa.list_(pa.string())), "k": key_list},
        {"m": typed, "k": key_array},
    ]


def found(m, k) -> list[int]:
    known = dict(m or [])
    return [known[key] for key in k or [] if key in known]


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.tuples(maps, asked), max_size=8))
@pytest.mark.parametrize("combiner", COMBINE)
def test_numbers_are_combined(encode, rows, combiner) -> None:
    text = config(f'combiner: "{combiner}" separator: "|" default_value: "-7"')
    want = [[COMBINE[combiner](found(m, k)) if found(m, k) else -7.0] for m, k in rows]
    for arrays in columns(rows):
        got = encode(text, arrays).floats()
        assert [[pytest.approx(x, rel=1e-7)] for (x,) in want] == got


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.list_(pa.float64())])
def test_keys_that_are_floats(encode, kind) -> None:
    """Numbers are written as short as they can be; 12.0 is the key 12."""
    numbers = [2.5, 12.0, 0.1, -3.0, 1e16, None]
    keys = pa.array(
        [None if x is None else [x] for x in numbers] if pa.types.is_list(kind) else numbers, kind
    )
    texts = [
        "2.5:1",
        "12:2",
        "0.1:3",
        "-3:4",
        f"{10**16 if kind != pa.float32() else 10000000272564224}:5",
        "2.5:6",
    ]
    assert encode(config(), {"m": texts, "k": keys}).floats() == [[1], [2], [3], [4], [5], [0]]
    typed = pa.array([[(12, 7)]] * 6, pa.map_(pa.int64(), pa.int64()))
    assert encode(config(), {"m": typed, "k": keys}).floats() == [[0], [7], [0], [0], [0], [0]]
    floats = pa.array([[(2.5, 8), (12.0, 9)]] * 6, pa.map_(pa.float64(), pa.int64()))
    assert encode(config(), {"m": floats, "k": ["2.5", "12", "1", "2.50", "", None]}).floats()[:4] == [
        [8], [9], [0], [0],
    ]  # fmt: skip


def test_a_key_that_is_nan_is_a_fault(encode) -> None:
    result = encode(config(), {"m": ["1:2", "1:3"], "k": [float("nan"), 1.0]}, bad=True)
    assert result.faults.rows.tolist() == [0]


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.tuples(maps, asked), max_size=8), default=st.sampled_from(["", "zz"]))
@pytest.mark.parametrize("need_key", [False, True])
def test_values_become_ids(encode, bucket, rows, default, need_key) -> None:
    text = config(
        f'hash_bucket_size: 1000 embedding_dim: 8 separator: "|" default_value: "{default}"'
        f" need_key: {str(need_key).lower()}"
    )
    want = []
    for m, k in rows:
        known = dict(m or [])
        words = [f"{key}_{known[key]}" if need_key else str(known[key]) for key in k or [] if key in known]
        want.append([bucket(w, 1000) for w in words] or ([bucket(default, 1000)] if default else []))
    for arrays in columns(rows):
        assert encode(text, arrays).ids() == want


def test_boundaries_cut_the_combined_number_or_each(encode) -> None:
    arrays = {"m": ["a:1\x1db:2"] * 3, "k": ["a|b", "a", "q"]}
    body = 'boundaries: [-0.5, 0.5, 1.5, 2.5] embedding_dim: 8 separator: "|"'
    assert encode(config(body), arrays).ids() == [[4], [2], [1]]
    assert encode(config(body + ' combiner: ""'), arrays).ids() == [[2, 3], [2], [1]]


def test_num_buckets_takes_every_value(encode) -> None:
    text = config('num_buckets: 10 embedding_dim: 8 separator: "|" default_value: ""')
    assert encode(text, {"m": ["a:1\x1db:2", "a:3", None], "k": ["a|b", "z", "a"]}).ids() == [[1, 2], [], []]


def test_integer_keys_meet_integer_and_text_maps(encode) -> None:
    ints = pa.array([[(1, 5), (2, 7)], [(3, 1)]], pa.map_(pa.int64(), pa.int64()))
    for key in (pa.array([2, 3]), pa.array(["2", "3"]), pa.array([[2], [3]])):
        assert encode(config(), {"m": ints, "k": key}).floats() == [[7.0], [1.0]]
        assert encode(config(), {"m": ["1:5\x1d2:7", "3:1"], "k": key}).floats() == [[7.0], [1.0]]


def test_vectors_are_combined_place_by_place(encode) -> None:
    body = 'value_dim: 2 separator: "|" default_value: "0"'
    arrays = {"m": ["a:1,2\x1db:3,5", "a:1,2", "a:1,2"], "k": ["a|b", "b", "a"]}
    assert encode(config(body), arrays).floats() == [[4, 7], [0, 0], [1, 2]]
    assert encode(config(body + ' combiner: "mean"'), arrays).floats() == [[2, 3.5], [0, 0], [1, 2]]
    single = {"m": ["a:1;2"], "k": ["a"]}
    assert encode(config(body + ' combiner: "" value_separator: ";"'), single).floats() == [[1, 2]]


def test_the_last_of_equal_keys_holds(encode) -> None:
    assert encode(config(), {"m": ["a:1\x1da:2"], "k": ["a"]}).floats() == [[2.0]]


def test_a_null_value_of_a_map_is_not_found(encode) -> None:
    m = pa.array([[("a", None), ("b", 2.0)], [("a", 1.0)]], pa.map_(pa.string(), pa.float64()))
    assert encode(config('default_value: "9"'), {"m": m, "k": ["a", "a"]}).floats() == [[9.0], [1.0]]


def test_normalizer_applies_to_the_combined_number(encode) -> None:
    text = config('normalizer: "method=minmax,min=0,max=10" separator: "|"')
    assert encode(text, {"m": ["a:2\x1db:3", None], "k": ["a|b", "a"]}).floats() == [[0.5], [0.0]]


def test_a_value_that_is_no_number_is_a_fault(encode) -> None:
    faults = encode(config(), {"m": ["a:1", "b:x\x1da:y"], "k": ["a", "a"]}, bad=True).faults
    assert (faults.first().row, faults.first().column, faults.first().problem) == (
        1,
        "m",
        "'y' is not a number",
    )
    ragged = encode(config("value_dim: 2"), {"m": ["a:1,2", "a:1"], "k": ["a", "a"]}, bad=True).faults
    assert (ragged.first().row, ragged.first().problem) == (1, "'1' has not value_dim 2 numbers")
    bad = encode(config("value_dim: 2"), {"m": ["a:1,2", "a:1,z"], "k": ["a", "a"]}, bad=True).faults
    assert (bad.first().row, bad.first().problem) == (1, "'z' is not a number")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('hash_bucket_size: 9 embedding_dim: 4 combiner: "max"', "combiner is for numbers"),
        ("need_key: true", "need_discrete and need_key make ids"),
        ('combiner: "median"', "combiner must be one of sum, mean, avg, min, max, count, got 'median'"),
        ('combiner: "gap_max"', "combiner 'gap_max' is not available"),
        ('hash_bucket_size: 9 embedding_dim: 4 normalizer: "method=log10"', "normalizer is for numbers"),
    ],
)
def test_settings_that_cannot_hold_are_refused(build, body, message) -> None:
    with pytest.raises(ConfigError) as error:
        build(config(body))
    assert message in str(error.value)


def test_encoded_columns_are_read_by_name(encode) -> None:
    text = config('num_buckets: 10 embedding_dim: 8 fg_encoded_default_value: "0"')
    assert encode(text, {"f": ["1\x032", "", "3"]}, mode="FG_NONE").ids() == [[1, 2], [0], [3]]
    dense = config('value_dim: 2 fg_encoded_default_value: "0\x030"')
    assert encode(dense, {"f": [[1, 2], [], [3, 4]]}, mode="FG_NONE").floats() == [[1, 2], [0, 0], [3, 4]]
