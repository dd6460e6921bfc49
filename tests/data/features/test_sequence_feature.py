"""Sequences: groups and single kinds, every form of column, truncation, broadcasting of row inputs."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.errors import ConfigError

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=";|"), max_size=4)
position = st.lists(words, min_size=1, max_size=3)
rows_of_words = st.lists(st.none() | st.lists(position, max_size=5), max_size=8)


def ids_config(body: str, name: str = "f") -> str:
    return (
        f'sequence_id_feature {{ feature_name: "{name}" expression: "user:c" embedding_dim: 8'
        f' separator: "|" {body} }}'
    )


@settings(max_examples=25, deadline=None)
@given(rows=rows_of_words, default=st.sampled_from(["", "zz"]), longest=st.sampled_from([0, 1, 3]))
def test_texts_and_lists_of_positions(encode, bucket, rows, default, longest) -> None:
    limit = f"sequence_length: {longest}" if longest else ""
    text = ids_config(f'hash_bucket_size: 1000 value_dim: 0 default_value: "{default}" {limit}')
    fallback = [bucket(default or "0", 1000)]

    def want(cells) -> list[list[list[int]]]:
        return [
            [[bucket(w, 1000) for w in p if w] or fallback for p in (row or [[]])[: longest or None]]
            for row in cells
        ]

    nested = pa.array([[["x"]], *rows], pa.list_(pa.list_(pa.string()))).slice(1)
    assert encode(text, {"c": nested}).sequence_ids() == want(rows)
    joined = [None if row is None else ["|".join(p) for p in row] for row in rows]
    lists = pa.array([["x"], *joined], pa.list_(pa.string())).slice(1)
    assert encode(text, {"c": lists}).sequence_ids() == want(rows)
    # A text cannot tell one empty position from no position.
    texts = [None if row is None else ";".join(row) for row in joined]
    cells = [None if not t else [p.split("|") for p in t.split(";")] for t in texts]
    for array in (
        pa.array(["x;y", *texts], pa.string()).slice(1),
        pa.array([*texts, "x"], pa.large_string()).slice(0, len(texts)),
        pa.array(["x", *texts], pa.string()).dictionary_encode().slice(1),
    ):
        result = encode(text, {"c": array})
        assert result.sequence_ids() == want(cells)
        bags = [bag for row in result.sequence_ids() for bag in row]
        assert result.encoded.sequence_sparse.single == all(len(bag) == 1 for bag in bags)


@settings(max_examples=20, deadline=None)
@given(rows=st.lists(st.none() | st.lists(st.none() | st.integers(0, 99), max_size=4), max_size=8))
def test_numbers(encode, rows) -> None:
    text = ids_config('num_buckets: 100 default_value: "7"')
    want = [[[7 if x is None else x] for x in row or [None]] for row in rows]
    for kind in (pa.int64(), pa.int32(), pa.float64()):
        assert encode(text, {"c": pa.array([[1], *rows], pa.list_(kind)).slice(1)}).sequence_ids() == want


def test_a_number_is_a_sequence_of_one(encode) -> None:
    assert encode(ids_config("num_buckets: 9"), {"c": pa.array([5, None])}).sequence_ids() == [[[5]], [[0]]]


@pytest.mark.parametrize("default", ["", "0"])
def test_empty_positions_and_rows_take_the_default_and_the_last_delimiter_counts(encode, default) -> None:
    text = ids_config(f'vocab_list: ["a", "b", "c"] default_value: "{default}" sequence_delim: "/"')
    got = encode(text, {"c": ["c//a/b/b/", "", "a/b//c", None]}).sequence_ids()
    assert got == [[[4], [0], [2], [3], [3], [0]], [[0]], [[2], [3], [0], [4]], [[0]]]


@pytest.mark.parametrize(
    ("body", "default", "want"),
    [
        ("num_buckets: 10", "", 0),
        ("num_buckets: 10", "3", 3),
        ("hash_bucket_size: 100 hash: MURMUR64", "", 26),
        ("hash_bucket_size: 100 hash: MURMUR64", "xyz", 13),
        ('vocab_list: ["a", "b"]', "", 0),
        ('vocab_list: ["a", "0"]', "", 3),
        ('vocab_dict { key: "a" value: 5 }', "", 0),
        ('vocab_list: ["a", "b"] default_bucketize_value: 1', "", 1),
        ('vocab_list: ["a", "b", "0"] default_bucketize_value: 1', "", 2),
        ('vocab_dict { key: "0" value: 4 } default_bucketize_value: 1', "", 4),
    ],
)
@pytest.mark.parametrize("mode", ["FG_NORMAL", "FG_DAG"])
def test_a_row_without_a_sequence_has_one_position_with_the_default(
    encode, mode, body, default, want
) -> None:
    text = ids_config(f'{body} default_value: "{default}"')
    lists = pa.array([[], None, [None]], pa.list_(pa.string()))
    for column in (pa.array(["", None], pa.string()), lists):
        got = encode(text, {"c": column}, mode=mode)
        assert got.sequence_ids() == [[[want]]] * len(column)
        assert got.encoded.sequence_lengths["f"].tolist() == [1] * len(column)


@pytest.mark.parametrize(
    ("body", "ids", "floats"),
    [
        ("boundaries: [0, 5, 10] embedding_dim: 4", [[[1]]], None),
        ("boundaries: [0, 5, 10] embedding_dim: 4 value_dim: 2", [[[1, 1]]], None),
        ("", None, [[[0.0]]]),
        ("value_dim: 3", None, [[[0.0, 0.0, 0.0]]]),
    ],
)
def test_a_row_without_numbers_has_one_position_of_zeros(encode, body, ids, floats) -> None:
    text = f'sequence_raw_feature {{ feature_name: "f" expression: "user:c" default_value: "" {body} }}'
    result = encode(text, {"c": pa.array([None, ""], pa.string())})
    assert (result.sequence_ids() if ids else result.sequence_floats()) == (ids or floats) * 2


def test_a_position_keeps_its_first_value_unless_value_dim_says_otherwise(encode) -> None:
    column = {"c": ["abc|efg;hij", "", "hij"]}
    hashed = "hash_bucket_size: 100 hash: MURMUR64"
    assert encode(ids_config(hashed), column).sequence_ids() == [[[33], [66]], [[26]], [[66]]]
    text = ids_config(hashed + " value_dim: 0")
    assert encode(text, column).sequence_ids() == [[[33, 44], [66]], [[26]], [[66]]]


def test_encoded_sequences(encode) -> None:
    text = 'sequence_id_feature { feature_name: "f" expression: "" embedding_dim: 8 num_buckets: 10 }'
    want = [[[1], [2]], [], [[3]], [[4, 5], [6]], []]
    texts = ["1;2", "", "3", "4\x035;6", None]
    lists = [[[1], [2]], [], [[3]], [[4, 5], [6]], None]
    assert encode(text, {"f": texts}, mode="FG_NONE").sequence_ids() == want
    assert encode(text, {"f": lists}, mode="FG_NONE").sequence_ids() == want
    filled = text.replace("num_", 'fg_encoded_default_value: "0" num_')
    for column in (texts, lists):
        assert encode(filled, {"f": column}, mode="FG_NONE").sequence_ids() == [row or [[0]] for row in want]


@pytest.mark.parametrize(
    ("column", "body"),
    [
        (["0.5|1;2|3", "", "4|5", None], 'separator: "|"'),
        ([[[0.5, 1.0], [2.0, 3.0]], [], [[4.0, 5.0]], None], ""),
        ([["0.5|1", "2|3"], [], ["4|5"], None], 'separator: "|"'),
    ],
)
def test_vectors(encode, column, body) -> None:
    text = f'sequence_raw_feature {{ feature_name: "f" expression: "user:c" value_dim: 2 {body} }}'
    result = encode(text, {"c": column})
    zeros = [[0.0, 0.0]]
    assert result.sequence_floats() == [[[0.5, 1.0], [2.0, 3.0]], zeros, [[4.0, 5.0]], zeros]
    assert result.encoded.sequence_lengths["f"].tolist() == [2, 1, 1, 1]
    assert result.encoded.sequence_sparse is None


@settings(max_examples=20, deadline=None)
@given(rows=st.lists(st.none() | st.lists(st.none() | st.floats(-9, 9, width=32), max_size=4), max_size=8))
def test_numbers_of_positions(encode, rows) -> None:
    text = 'sequence_raw_feature { feature_name: "f" expression: "user:c" default_value: "-1" }'
    want = [[[-1.0 if x is None else x] for x in row or [None]] for row in rows]
    assert (
        encode(text, {"c": pa.array([[1.0], *rows], pa.list_(pa.float32())).slice(1)}).sequence_floats()
        == want
    )


def test_weighted_positions(encode) -> None:
    text = ids_config("num_buckets: 10 weighted: true value_dim: 0")
    result = encode(text, {"c": ["1:0.5|2:2;3:1", None]})
    assert result.sequence_ids() == [[[1, 2], [3]], [[0]]]
    assert result.encoded.sequence_sparse.weights.tolist() == [0.5, 2.0, 1.0, 1.0]


GROUP = """
sequence_feature {
  sequence_name: "click" sequence_length: 3 sequence_delim: ";"
  features { id_feature { feature_name: "item" expression: "item:iid" embedding_dim: 8 num_buckets: 100 } }
  features { raw_feature { feature_name: "price" expression: "user:price" } }
  features {
    lookup_feature {
      feature_name: "count" map: "user:counts" key: "item:cate" boundaries: [0.5, 1.5] embedding_dim: 4
    }
  }
  features {
    combo_feature {
      feature_name: "cross" expression: ["user:age", "item:cate"] hash_bucket_size: 1000 embedding_dim: 4
    }
  }
}
"""


def columns(**changed) -> dict:
    return {
        "click__iid": ["1;2;3;4", "", "5"],
        "click__price": [[0.5, 1.5, 2.5, 3.5], None, [4.0]],
        "counts": ["a:1\x1db:2", "a:1", None],
        "click__cate": [["a", "b", "z", "a"], [], ["a"]],
        "age": pa.array([18, 19, None]),
        **changed,
    }


def test_groups_name_members_and_columns_and_repeat_row_inputs(encode, bucket) -> None:
    result = encode(GROUP, columns())
    assert [f.spec.name for f in result.features] == [
        "click__item",
        "click__price",
        "click__count",
        "click__cross",
    ]
    assert all(f.spec.sequence and f.spec.sequence_name == "click" for f in result.features)
    assert result.features[2].columns == ("counts", "click__cate")
    assert result.features[0].spec.embedding_name == "click__item_emb"
    assert result.sequence_ids("click__item") == [[[1], [2], [3]], [[0]], [[5]]]
    assert result.sequence_floats("click__price") == [[[0.5], [1.5], [2.5]], [[0.0]], [[4.0]]]
    assert result.sequence_ids("click__count") == [[[1], [2], [0]], [[0]], [[0]]]
    none = [[bucket("0", 1000)]]
    cross = [[[bucket("18_a", 1000)], [bucket("18_b", 1000)], [bucket("18_z", 1000)]], none, none]
    assert result.sequence_ids("click__cross") == cross
    assert result.encoded.sequence_lengths["click"].tolist() == [3, 1, 1]
    assert result.encoded.sequence_sparse.keys == ("click__item", "click__count", "click__cross")
    assert result.encoded.sequence_sparse.bag_counts == (5, 5, 5)


def test_members_of_unequal_length_are_faults(encode) -> None:
    faults = encode(GROUP, columns(click__price=[[0.5, 1.5], None, [4.0]]), bad=True).faults
    first = faults.first()
    assert faults.rows.tolist() == [0]
    assert first.problem == "has 2 positions, not as many as click__item of 'click'"
    assert (first.feature, first.column) == ("click__price", "click__price")


def test_inputs_of_one_feature_of_unequal_length_are_faults(encode) -> None:
    text = """sequence_combo_feature {
      feature_name: "f" expression: ["item:a", "item:b"] hash_bucket_size: 9 embedding_dim: 4
    }"""
    faults = encode(text, {"a": ["1;2", "1"], "b": ["1;2", "1;2;3"]}, bad=True).faults
    assert (faults.rows.tolist(), faults.first().column) == ([1], "b")
    assert faults.first().problem == "has 3 positions, not as many as the other inputs"


def test_a_bad_position_names_its_row(encode) -> None:
    faults = encode(ids_config("num_buckets: 10"), {"c": ["1;2", None, "3;11;4", "x"]}, bad=True).faults
    assert faults.rows.tolist() == [2, 3]
    assert faults.first().problem == "id 11 is outside num_buckets 10"


def test_sequence_fields_say_which_inputs_have_positions(encode) -> None:
    text = """sequence_overlap_feature {
      feature_name: "f" query: "user:q" title: "user:t" method: "query_common_ratio"
      sequence_fields: "t" separator: "|"
    }"""
    result = encode(text, {"q": ["a|b", "a|b"], "t": ["a|x;a|b", "q"]})
    assert result.sequence_floats() == [[[0.5], [1.0]], [[0.0]]]


def test_expressions_over_a_row_and_a_sequence(encode) -> None:
    text = """sequence_expr_feature {
      feature_name: "f" expression: "now - then" variables: ["user:now", "item:then"] default_value: "-1"
    }"""
    result = encode(text, {"now": [10.0, 20.0], "then": [[1.0, None, 3.0], [5.0]]})
    assert result.sequence_floats() == [[[9.0], [-1.0], [7.0]], [[15.0]]]


def test_encoded_group_members_are_read_by_name(encode) -> None:
    group = GROUP.replace("features { raw", "features { raw").split("features {\n")[0] + "}"
    data = {"click__item": ["1;2", None], "click__price": ["0.5;1.5", None]}
    result = encode(group, data, mode="FG_NONE")
    assert result.sequence_ids("click__item") == [[[1], [2]], []]
    assert result.sequence_floats("click__price") == [[[0.5], [1.5]], []]


CROSS_OF_ROWS = """sequence_combo_feature {
  feature_name: "f" expression: ["user:a", "user:b"] hash_bucket_size: 9
}"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GROUP.replace("sequence_length: 3", "sequence_length: 0"), "sequence_length must be at least 1"),
        (
            GROUP.replace("num_buckets: 100", "num_buckets: 100 sequence_length: 3"),
            "belongs to the sequence_feature",
        ),
        (
            'sequence_feature { sequence_name: "s" sequence_length: 2 sequence_delim: ";" }',
            "must have features",
        ),
        (
            CROSS_OF_ROWS,
            "must have a sequence among its inputs",
        ),
        (
            ids_config('num_buckets: 9 sequence_fields: "d"'),
            "sequence_fields must name inputs of the feature, got d",
        ),
        (ids_config('num_buckets: 9 sequence_delim: ""'), "sequence_delim must not be empty"),
    ],
)
def test_settings_that_cannot_hold_are_refused(build, text, message) -> None:
    with pytest.raises(ConfigError) as error:
        build(text)
    assert message in str(error.value)


def test_names_of_members_by_one_underscore(tmp_path) -> None:
    from recgrad.config import load_config
    from recgrad.data.features.build import features_of

    member = {
        "id_feature": {"feature_name": "item", "expression": "item:iid", "num_buckets": 5, "embedding_dim": 4}
    }
    sequence = {"sequence_name": "clicks", "sequence_length": 3, "sequence_delim": "|", "features": [member]}
    config = {"data_config": {"fg_mode": "FG_DAG"}, "feature_configs": [{"sequence_feature": sequence}]}
    (feature,) = features_of(load_config(config))
    assert (feature.name, feature.columns) == ("clicks__item", ("clicks__iid",))
    (feature,) = features_of(load_config({**config, "rtp_names": True}))
    assert (feature.name, feature.columns) == ("clicks_item", ("clicks_iid",))
    config["data_config"] = {"fg_mode": "FG_NONE"}
    (feature,) = features_of(load_config({**config, "rtp_names": True}))
    assert (feature.name, feature.columns) == ("clicks_item", ("clicks_item",))


def test_encoded_vectors_take_only_the_encoded_default(encode) -> None:
    body = 'feature_name: "f" expression: "" value_dim: 2 default_value: "7"'
    column = {"f": ["0.1\x031.5;0.2\x032.5", "", None]}
    filled = f'sequence_raw_feature {{ {body} fg_encoded_default_value: "0\x030" }}'
    rows = encode(filled, column, mode="FG_NONE").sequence_floats()
    assert rows == [[[pytest.approx(0.1), 1.5], [pytest.approx(0.2), 2.5]], [[0.0, 0.0]], [[0.0, 0.0]]]
    rows = encode(f"sequence_raw_feature {{ {body} }}", column, mode="FG_NONE").sequence_floats()
    assert rows[1:] == [[], []]
