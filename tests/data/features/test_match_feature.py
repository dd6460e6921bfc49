"""match_feature against nested Python dicts."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.errors import ConfigError, DataError

keys = st.sampled_from(["a", "bb", "ц"])
nested = st.none() | st.lists(
    st.tuples(keys, st.lists(st.tuples(keys, st.integers(-9, 9)), min_size=1, max_size=3)), max_size=3
)
asked = st.none() | keys


def config(body: str = "", pkey: str = "item:p", skey: str = "item:s") -> str:
    return f'match_feature {{ feature_name: "f" nested_map: "user:m" pkey: "{pkey}" skey: "{skey}" {body} }}'


def text_of(m) -> str | None:
    return None if m is None else "|".join(f"{p}^" + ",".join(f"{s}:{v}" for s, v in items) for p, items in m)


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.tuples(nested, asked, asked), max_size=8))
@pytest.mark.parametrize("wild", ["", "p", "s", "ps"])
def test_matches(encode, bucket, rows, wild) -> None:
    pkey, skey = "ALL" if "p" in wild else "item:p", "ALL" if "s" in wild else "item:s"
    columns = {
        "m": pa.array(["a^a:1", *(text_of(m) for m, _, _ in rows)], pa.string()).slice(1),
        "p": pa.array([p for _, p, _ in rows], pa.string()),
        "s": pa.array([s for _, _, s in rows], pa.string()),
    }
    hits = [
        [
            (p, s, v)
            for p, items in m or []
            for s, v in items
            if (p == pk or "p" in wild) and (s == sk or "s" in wild)
        ]
        for m, pk, sk in rows
    ]
    want = [[float(sum(v for *_, v in row)) if row else -7.0] for row in hits]
    assert encode(config('default_value: "-7"', pkey, skey), columns).floats() == want
    hashed = config('hash_bucket_size: 100 embedding_dim: 4 default_value: ""', pkey, skey)
    assert encode(hashed, columns).ids() == [[bucket(v, 100) for *_, v in row] for row in hits]
    shown = hashed.replace("hash_", "show_pkey: true show_skey: true hash_")
    assert encode(shown, columns).ids() == [[bucket(f"{p}_{s}_{v}", 100) for p, s, v in row] for row in hits]


def test_numbers_as_keys_and_several_keys(encode) -> None:
    m = ["1^10:2,20:3|2^10:5"] * 2
    assert encode(config(), {"m": m, "p": pa.array([1, 2]), "s": pa.array([10, 10])}).floats() == [
        [2.0],
        [5.0],
    ]
    text = config('separator: "+"')
    assert encode(text, {"m": m, "p": ["1+2", "1"], "s": ["10", "10+20"]}).floats() == [[7.0], [5.0]]


def test_boundaries_and_num_buckets(encode) -> None:
    columns = {"m": ["a^x:1,y:2", None], "p": ["a", "a"], "s": ["y", "y"]}
    assert encode(config("boundaries: [-0.5, 0.5, 1.5] embedding_dim: 4"), columns).ids() == [[3], [1]]
    assert encode(config("num_buckets: 5 embedding_dim: 4"), columns).ids() == [[2], [0]]


@pytest.mark.parametrize("bad", ["a", "a^x", "a^x:1|b", "a^x:1,y", "x:1"])
def test_text_that_is_no_map_is_a_fault(encode, bad) -> None:
    columns = {"m": ["a^x:1", bad, "a^x:1"], "p": ["a"] * 3, "s": ["x"] * 3}
    faults = encode(config(), columns, bad=True).faults
    assert faults.rows.tolist() == [1]
    assert (faults.first().column, faults.first().problem) == ("m", f"{bad!r} is no nested map")


def test_numbers_are_no_map(encode) -> None:
    with pytest.raises(DataError, match="a nested map must be text"):
        encode(config(), {"m": pa.array([1]), "p": ["a"], "s": ["x"]})


def test_all_nulls(encode) -> None:
    assert encode(config(), {"m": pa.nulls(2), "p": ["a", "b"], "s": pa.nulls(2)}).floats() == [[0.0], [0.0]]


@pytest.mark.parametrize(
    ("body", "message"),
    [("show_pkey: true", "show_pkey and show_skey make ids"), ("value_dim: 2", "must be 1, got 2")],
)
def test_settings_that_cannot_hold_are_refused(build, body, message) -> None:
    with pytest.raises(ConfigError) as error:
        build(config(body))
    assert message in str(error.value)
